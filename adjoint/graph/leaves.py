"""Leaves of arguments and results: tensors, or anything else that a tree may hold."""

from __future__ import annotations

from typing import TypeGuard

import torch

from adjoint.strides import repeats_elements
from adjoint.torch_private.fake import detached_fake


def requires_grad(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor that requires grad."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def detached(leaf: object) -> object:
    """A tensor without its autograd history; anything else is itself.

    A tracer does not see it if the tensor is a fake.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    fake = detached_fake(leaf)
    return leaf.detach() if fake is None else fake


def is_floating(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of floating-point or complex numbers, which may have a derivative."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of the elements of a tensor, in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def copy_with_strides(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, so that it has the same views, unless elements overlap."""
    copy = value.clone()
    if copy.layout is not torch.strided or copy.stride() == value.stride():
        return copy
    if repeats_elements(value.shape, value.stride()):  # Nothing can be copied into such memory.
        return copy
    same = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return same.copy_(value)
