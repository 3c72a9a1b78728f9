"""Leaves of arguments and results: tensors, or anything else that a tree may hold."""

from __future__ import annotations

from typing import TypeGuard

import torch


def requires_grad(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor that requires grad."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def detached(leaf: object) -> object:
    """A tensor without its autograd history; anything else is itself."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
