"""Reductions: the cotangent is broadcast back over the axes that were reduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from adjoint.rules.registry import Cotangents, vjp

aten = torch.ops.aten


# Axes of a reduction; None or an empty list: all.
Axes: TypeAlias = Sequence[int] | int | None


def restore_axes(value: torch.Tensor, x: torch.Tensor, dim: Axes, keepdim: bool) -> torch.Tensor:
    """`value` with an axis of size 1 for each axis of x that was reduced, as `keepdim` has it."""
    if keepdim or x.dim() == 0:
        return value
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return value.reshape([1] * x.dim())
    for axis in sorted(axis % x.dim() for axis in _listed(dim)):
        value = value.unsqueeze(axis)
    return value


def _listed(dim: Sequence[int] | int) -> Sequence[int]:
    return [dim] if isinstance(dim, int) else dim


@vjp(aten.sum.default)
def sum_all(cotangent: Tensor, out: Tensor, x: Tensor, **_: object) -> Cotangents:
    """Every summand receives the cotangent unchanged."""
    return (cotangent.expand(x.shape),)


@vjp(aten.sum.dim_IntList)
def sum_dims(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    **_: object,
) -> Cotangents:
    """Every summand receives the cotangent unchanged."""
    return (restore_axes(cotangent, x, dim, keepdim).expand(x.shape),)


@vjp(aten.mean.default)
def mean_all(cotangent: Tensor, out: Tensor, x: Tensor, **_: object) -> Cotangents:
    """An equal share for every element."""
    return ((cotangent / x.numel()).expand(x.shape),)


@vjp(aten.mean.dim)
def mean_dims(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    **_: object,
) -> tuple[Tensor]:
    """An equal share for every element."""
    axes = range(x.dim()) if dim is None or not _listed(dim) else _listed(dim)
    return ((restore_axes(cotangent, x, dim, keepdim) / _count(x, axes)).expand(x.shape),)


def _count(x: torch.Tensor, axes: Sequence[int]) -> int:
    """How many elements are reduced to one."""
    return math.prod(x.shape[axis] for axis in axes) if x.dim() else 1


class _Options(TypedDict, total=False):
    """The keyword arguments of variances and deviations."""

    correction: float | None
    keepdim: bool


@vjp(aten.var.correction)
def variance(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: Sequence[int] | None = None,
    **options: Unpack[_Options],
) -> Cotangents:
    """2 (x - mean) / (n - correction)."""
    return (_of_variance(cotangent, x, dim, **options),)


@vjp(aten.std.correction)
def deviation(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    dim: Sequence[int] | None = None,
    **options: Unpack[_Options],
) -> Cotangents:
    """The derivative of the variance / (2 deviation); zero where the deviation is zero."""
    return (_of_variance(_of_root(cotangent, out), x, dim, **options),)


@vjp(aten.var_mean.correction)
def variance_and_mean(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    dim: Sequence[int] | None = None,
    **options: Unpack[_Options],
) -> Cotangents:
    """The sum of the derivatives of both results."""
    return (_of_both(cotangent[0], cotangent[1], x, dim, **options),)


@vjp(aten.std_mean.correction)
def deviation_and_mean(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    dim: Sequence[int] | None = None,
    **options: Unpack[_Options],
) -> Cotangents:
    """The sum of the derivatives of both results."""
    of_variance = None if cotangent[0] is None else _of_root(cotangent[0], out[0])
    return (_of_both(of_variance, cotangent[1], x, dim, **options),)


def _of_root(cotangent: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """The cotangent of x, given that of root = sqrt(x): cotangent / (2 root)."""
    return (cotangent / (2 * root)).masked_fill(root == 0, 0)


def _of_both(
    of_variance: Tensor | None,
    of_mean: Tensor | None,
    x: torch.Tensor,
    dim: Sequence[int] | None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor | None:
    parts: list[Tensor] = []
    if of_variance is not None:
        parts.append(_of_variance(of_variance, x, dim, correction=correction, keepdim=keepdim))
    if of_mean is not None:
        parts.append(mean_dims(of_mean, of_mean, x, dim, keepdim)[0])
    return sum(parts[1:], parts[0]) if parts else None


def _of_variance(
    cotangent: torch.Tensor,
    x: torch.Tensor,
    dim: Axes,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    correction = 1 if correction is None else correction
    if dim is None or x.dim() == 0:
        freedom = x.numel() - correction
        if freedom <= 0:
            # As in eager: x / 0 is infinite, and 0 / 0 is NaN.
            return cotangent * torch.where(x == x.mean(), math.nan, math.inf)
        return _twice_over(cotangent, freedom) * (x - x.mean())
    axes = list(_listed(dim)) or list(range(x.dim()))
    share = _twice_over(restore_axes(cotangent, x, axes, keepdim), _count(x, axes) - correction)
    return share * (x - x.mean(axes, keepdim=True))


def _twice_over(cotangent: torch.Tensor, freedom: float | Tensor) -> torch.Tensor:
    """2 cotangent / freedom; dividing a tensor by zero does not raise as dividing a number does."""
    if isinstance(freedom, int | float) and freedom:
        return cotangent * (2 / freedom)
    return cotangent * 2 / freedom


@vjp(aten.prod.default)
def product_of_all(cotangent: Tensor, out: Tensor, x: Tensor, **_: object) -> Cotangents:
    """The product of all other elements."""
    flat = x.to(out.dtype).reshape(-1)
    return ((cotangent * _product_of_others(flat, 0).conj()).reshape(x.shape),)


@vjp(aten.prod.dim_int)
def product(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, keepdim: bool = False, **_: object
) -> Cotangents:
    """The product of all other elements."""
    if x.dim() == 0:
        return (cotangent,)
    others = _product_of_others(x.to(out.dtype), dim % x.dim())
    return (restore_axes(cotangent, x, dim, keepdim) * others.conj(),)


def _product_of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """For each element, the product of those before it times the product of those after it.

    No division, so that zeros are no special case; no slices, so that the axis may be empty.
    """

    def before(x: torch.Tensor) -> torch.Tensor:
        is_first = torch.arange(x.shape[dim], device=x.device) == 0
        is_first = is_first.reshape([-1] + [1] * (x.dim() - dim - 1))
        return torch.where(is_first, 1, x.roll(1, dim)).cumprod(dim)

    return before(x) * before(x.flip(dim)).flip(dim)


@vjp(aten.amax.default, aten.amin.default)
def extremum(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: Sequence[int] = (), keepdim: bool = False
) -> Cotangents:
    """All elements that attain the extremum share the cotangent equally."""
    attained = x == restore_axes(out, x, dim, keepdim)
    axes = list(range(x.dim())) if not _listed(dim) else list(_listed(dim))
    count = attained.sum(axes, keepdim=True)
    return (restore_axes(cotangent, x, dim, keepdim) * attained / count,)


@vjp(aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim)
def selected(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    dim: int,
    keepdim: bool = False,
) -> Cotangents:
    """The cotangent goes to the element that was selected."""
    return (_scattered(cotangent[0], out[1], x, dim, keepdim),)


@vjp(aten.kthvalue.default)
def kthvalue(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    k: int,
    dim: int = -1,
    keepdim: bool = False,
) -> Cotangents:
    """The cotangent goes to the element that was selected."""
    return (_scattered(cotangent[0], out[1], x, dim, keepdim),)


def _scattered(
    cotangent: torch.Tensor, index: torch.Tensor, x: torch.Tensor, dim: int, keepdim: bool
) -> torch.Tensor:
    """Zeros like `x`, with each cotangent at `index` along `dim`."""
    if x.dim() == 0:
        return cotangent
    place = restore_axes(index, x, dim, keepdim)
    return cotangent.new_zeros(x.shape).scatter(
        dim, place, restore_axes(cotangent, x, dim, keepdim)
    )


@vjp(aten.topk.default)
def topk(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Cotangents:
    """Each cotangent goes to the element that was selected."""
    return (_scattered(cotangent[0], out[1], x, dim, keepdim=True),)


@vjp(aten.sort.default)
def sort(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    dim: int = -1,
    descending: bool = False,
) -> Cotangents:
    """Each cotangent goes to the element that was selected."""
    return (_scattered(cotangent[0], out[1], x, dim, keepdim=True),)


@vjp(aten.logsumexp.default)
def logsumexp(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False
) -> Cotangents:
    """g exp(x - out)"""
    total = restore_axes(out, x, dim, keepdim)
    slope = (x - total).exp()
    slope = slope.conj() if slope.is_complex() else slope
    return (restore_axes(cotangent, x, dim, keepdim) * slope,)


@vjp(aten._softmax.default)
def softmax(cotangent: Tensor, out: Tensor, x: Tensor, dim: int, half_to_float: bool) -> Cotangents:
    """out (g - sum(g out))"""
    return (aten._softmax_backward_data.default(cotangent, out, dim, x.dtype),)


@vjp(aten._log_softmax.default)
def log_softmax(
    cotangent: Tensor, out: Tensor, x: Tensor, dim: int, half_to_float: bool
) -> Cotangents:
    """g - exp(out) sum(g)"""
    return (aten._log_softmax_backward_data.default(cotangent, out, dim, x.dtype),)


@vjp(aten._softmax_backward_data.default)
def softmax_backward(
    cotangent: Tensor, out: Tensor, g: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype
) -> Cotangents:
    """Of y (g - sum(g y)): self-adjoint in g, and a product of two functions of y."""
    return (
        lambda: aten._softmax_backward_data.default(cotangent.to(y.dtype), y, dim, y.dtype),
        lambda: (
            cotangent * g
            - cotangent * (g * y).sum(dim, keepdim=True)
            - g * (cotangent * y).sum(dim, keepdim=True)
        ),
    )


@vjp(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    cotangent: Tensor, out: Tensor, g: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype
) -> Cotangents:
    """Of g - exp(y) sum(g)."""
    return (
        lambda: cotangent - (cotangent * y.exp()).sum(dim, keepdim=True),
        lambda: -(cotangent * y.exp()) * g.sum(dim, keepdim=True),
    )
