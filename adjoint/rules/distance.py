"""Distances between points: their backward kernels as compositions.

For one difference d and the distance r = (sum |d|^p)^(1/p), dr/dd = sign(d) (|d| / r)^(p - 1).
For coincident points it is zero, as in eager, and so are its derivatives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adjoint.rules.registry import composition

aten = torch.ops.aten


@composition(aten._cdist_backward.default)
def cdist_backward(cotangent: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    """The sum over all points of y of the distances' derivatives with respect to a point of x."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    return (slope(difference, distance.unsqueeze(-1), p) * cotangent.unsqueeze(-1)).sum(-2)


@composition(aten._pdist_backward.default)
def pdist_backward(cotangent: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """The distance of a pair has opposite derivatives with respect to its two points."""
    pairs = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    one, other = pairs.unbind()
    difference = x.index_select(0, one) - x.index_select(0, other)
    moved = slope(difference, distance.unsqueeze(-1), p) * cotangent.unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, one, moved).index_add(0, other, -moved)


def slope(difference: torch.Tensor, distance: torch.Tensor, p: float) -> torch.Tensor:
    """The derivative of the distance with respect to the difference."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == math.inf:
        # As in eager, every coordinate that attains the maximum receives the whole cotangent.
        return difference.sign() * (difference.abs() == distance).to(difference.dtype)
    apart = distance != 0
    radius = torch.where(apart, distance, 1)
    if p == 2:
        return torch.where(apart, difference / radius, 0)
    away = apart & (difference != 0)
    length = torch.where(away, difference.abs(), 1)
    return torch.where(away, difference.sign() * (length / radius) ** (p - 1), 0)
