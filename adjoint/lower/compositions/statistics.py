"""Variance, standard deviation and vector norms.

Variances are computed in two passes, mean first, for accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import (
    NoComposition,
    composition,
    require_elements,
    require_real,
    require_real_with_axes,
    widened,
)
from adjoint.torch_private.symbols import is_unbacked_int

aten = torch.ops.aten

# How far the two sums of a variance of equal elements may be apart.
MAX_ROUNDING_ULPS = 64


def _unbiased(
    x: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    require_real_with_axes(x)
    axes = list(range(x.dim())) if not dim else [d % x.dim() for d in dim]
    count: object = math.prod(x.shape[axis] for axis in axes)
    correction = 1 if correction is None else correction
    if not isinstance(count, int) or count <= correction:
        raise NoComposition
    wide = widened(x)
    mean = wide.mean(axes, keepdim=True)
    centered = wide - mean
    squares = (centered * centered).sum(axes, keepdim=keepdim)
    # The mean is rounded, so the centered elements do not sum to zero.  If all elements are equal,
    # the squares are rounding errors alone, and the variance has to be exactly zero: the derivative
    # of the deviation tests for that.
    rest = squares - centered.sum(axes, keepdim=keepdim).square() / count
    is_rounding = rest <= MAX_ROUNDING_ULPS * torch.finfo(wide.dtype).eps * squares
    variance = rest.masked_fill(is_rounding, 0) / (count - correction)
    return variance, mean if keepdim else mean.squeeze(axes)


@composition(aten.var.correction)
def _var(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    return _unbiased(x, dim, correction, keepdim)[0].to(x.dtype)


@composition(aten.std.correction)
def _std(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    return _unbiased(x, dim, correction, keepdim)[0].sqrt().to(x.dtype)


@composition(aten.var_mean.correction)
def _var_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    variance, mean = _unbiased(x, dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


@composition(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    require_real(x)
    require_elements(x)
    if dtype is not None:
        raise NoComposition
    wide = widened(x)
    axes = list(range(x.dim()) if dim is None else dim)
    if ord == 2:
        return (wide * wide).sum(axes, keepdim=keepdim).sqrt().to(x.dtype)
    if ord == 1:
        return wide.abs().sum(axes, keepdim=keepdim).to(x.dtype)
    # In eager the maximum of an empty tensor is an error.
    if ord == math.inf and not any(is_unbacked_int(x.shape[axis]) for axis in axes):
        return wide.abs().amax(axes, keepdim=keepdim).to(x.dtype)
    raise NoComposition
