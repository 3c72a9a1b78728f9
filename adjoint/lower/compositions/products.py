"""Matrix products with a bias or a short dimension, as loops that fuse with others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import NoComposition, composition

aten = torch.ops.aten


@composition(aten.addmm.default)
def _addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta != 1 or alpha != 1 or not bias.dtype.is_floating_point:
        raise NoComposition
    # For half types the library rounds once, after the sum.
    if bias.dtype in (torch.float16, torch.bfloat16):
        raise NoComposition
    try:
        product: Tensor = _mm(x, y)
    except NoComposition:
        product = torch.mm(x, y)
    return product + bias


# Products with a dimension of at most this size are loops, not library calls.
MAX_SHORT_DIMENSION = 4


@composition(aten.mm.default)
def _mm(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype not in (torch.float32, torch.float64):
        raise NoComposition
    rows, inner, columns = x.shape[0], x.shape[1], y.shape[1]
    if 0 in (rows, inner, columns):
        raise NoComposition
    if is_short(inner):
        parts = [x.select(1, k).unsqueeze(1) * y.select(0, k) for k in range(inner)]
        total, *others = parts
        for part in others:
            total = total + part
        return total
    if is_short(columns):
        sums = [(x * y.select(1, n)).sum(1, keepdim=True) for n in range(columns)]
        return sums[0] if columns == 1 else torch.cat(sums, 1)
    if is_short(rows):
        sums = [(x.select(0, m).unsqueeze(1) * y).sum(0, keepdim=True) for m in range(rows)]
        return sums[0] if rows == 1 else torch.cat(sums, 0)
    raise NoComposition


def is_short(size: Any, most: int = MAX_SHORT_DIMENSION) -> bool:
    return isinstance(size, int) and size <= most


@composition(aten.baddbmm.default)
def _baddbmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == 0 or bias.dtype not in (torch.float32, torch.float64):
        raise NoComposition
    product = torch.bmm(x, y)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)
