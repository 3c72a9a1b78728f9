"""Embedding bags: their backward kernels as compositions.

A bag's result is the sum, mean or maximum of the rows of `weight` that its indices name.  Indices
equal to `padding_idx` are ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.open_types import OpArgument
from adjoint.rules.registry import composition, composition_by_name

aten = torch.ops.aten

_MEAN, _MAX = 1, 2


@composition_by_name(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    cotangent: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: object,
    sparse: bool,
    **named: OpArgument,
) -> Tensor:
    """Bags are computed from the offsets: the kernel may leave `offset2bag` empty."""
    bags = _bags(indices, offsets)
    return embedding_bag_dense_backward(cotangent, indices, bags, **named)


@composition(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    cotangent: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Each row receives the cotangents of the bags that contain it."""
    zeros = cotangent.new_zeros((num_weights, cotangent.shape[1]))
    if mode == _MAX:
        filled = torch.where((bag_size[: cotangent.shape[0]] > 0).unsqueeze(1), cotangent, 0)
        return zeros.scatter_add(0, maximum_indices.clamp(min=0).to(torch.int64), filled)
    parts = cotangent.index_select(0, offset2bag)
    if mode == _MEAN:
        parts = parts / bag_size.index_select(0, offset2bag).clamp(min=1).unsqueeze(1)
    if per_sample_weights is not None:
        parts = parts * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        ones = torch.ones_like(indices)
        counts = indices.new_zeros((num_weights,)).index_add(0, indices, ones)
        parts = parts / counts.index_select(0, indices).unsqueeze(1)
    if padding_idx >= 0:
        parts = torch.where((indices != padding_idx).unsqueeze(1), parts, 0)
    return zeros.index_add(0, indices, parts)


@composition(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    cotangent: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The inner product of each sample's row and the cotangent of its bag."""
    parts = cotangent.index_select(0, _bags(indices, offsets))
    found = (parts * weight.index_select(0, indices)).sum(1)
    return torch.where(indices != padding_idx, found, 0) if padding_idx >= 0 else found


def _bags(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The bag of each index: the last one that begins at or before it."""
    positions = torch.arange(indices.shape[0], device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, positions, right=True) - 1
