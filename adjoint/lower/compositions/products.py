"""Matrix products with a bias or a short dimension, as loops that fuse with others."""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.dtypes import HALVES
from adjoint.lower.compositions.registry import NoComposition, composition
from adjoint.rules.costs import MAX_SHORT_DIMENSION

aten = torch.ops.aten


@composition(aten.addmm.default)
def _addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta != 1 or alpha != 1 or not bias.dtype.is_floating_point:
        raise NoComposition
    # For half types the library rounds once, after the sum.
    if bias.dtype in HALVES:
        raise NoComposition
    return _product(x, y) + bias


@composition(aten.mm.default, aten.bmm.default)
def _short_product(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices in the last two dimensions, one of which is short."""
    if x.dtype not in (torch.float32, torch.float64):
        raise NoComposition
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    if is_short(inner):
        parts = [
            x.select(-1, k).unsqueeze(-1) * y.select(-2, k).unsqueeze(-2) for k in range(inner)
        ]
        total, *others = parts
        for part in others:
            total = total + part
        return total
    if is_short(columns):
        factors = [y.select(-1, n).unsqueeze(-2) for n in range(columns)]
        sums = [(x * factor).sum(-1, keepdim=True) for factor in factors]
        return sums[0] if columns == 1 else torch.cat(sums, -1)
    if is_short(rows):
        factors = [x.select(-2, m).unsqueeze(-1) for m in range(rows)]
        sums = [(factor * y).sum(-2, keepdim=True) for factor in factors]
        return sums[0] if rows == 1 else torch.cat(sums, -2)
    raise NoComposition


def _product(x: Tensor, y: Tensor) -> Tensor:
    """By loops if a dimension is short, else by the library."""
    try:
        product: Tensor = _short_product(x, y)
    except NoComposition:
        product = torch.mm(x, y) if x.ndim == 2 else torch.bmm(x, y)
    return product


def is_short(size: object, most: int = MAX_SHORT_DIMENSION) -> bool:
    return isinstance(size, int) and size <= most


@composition(aten.baddbmm.default)
def _baddbmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == 0 or bias.dtype not in (torch.float32, torch.float64):
        raise NoComposition
    product = _product(x, y)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)
