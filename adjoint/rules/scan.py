"""Scans along an axis: running sums and extrema."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.graph.operations import exponential_scan
from adjoint.rules.pointwise import conjugate
from adjoint.rules.registry import Cotangents, vjp

aten = torch.ops.aten


@vjp(aten.cumsum.default)
def cumsum(cotangent: Tensor, out: Tensor, x: Tensor, dim: int, **_: object) -> Cotangents:
    """The sum of the cotangents from each element to the end."""
    return (_suffix_sums(cotangent, dim),)


def _suffix_sums(value: torch.Tensor, dim: int) -> torch.Tensor:
    return value.flip(dim).cumsum(dim).flip(dim) if value.dim() else value


@vjp(aten.cumprod.default)
def cumprod(cotangent: Tensor, out: Tensor, x: Tensor, dim: int, **_: object) -> Cotangents:
    """dx_k = (x_0 ... x_{k-1}) s_k with s_k = g_k + x_{k+1} s_{k+1}

    There is no division, so zeros are no special case.  The recurrence is computed by doubling:
    maps s -> g + a s of one step, then of two, of four.  Torch's own formula has a term for each
    pair of elements.
    """
    if x.dim() == 0:
        return (cotangent,)
    dim %= x.dim()
    size = x.shape[dim]
    place = torch.arange(size, device=x.device).reshape([-1] + [1] * (x.dim() - dim - 1))

    def shifted(value: Tensor, by: int) -> Tensor:
        """The elements `by` places later, zeros at the end."""
        return torch.where(place < size - by, value.roll(-by, dim), 0)

    factors = conjugate(x.to(out.dtype))
    before = torch.where(place == 0, 1, factors.roll(1, dim)).cumprod(dim)
    total, slope, step = cotangent, shifted(factors, 1), 1
    while step < size:
        total, slope = total + slope * shifted(total, step), slope * shifted(slope, step)
        step *= 2
    return (before * total,)


@vjp(aten.cummax.default, aten.cummin.default)
def extremum(
    cotangent: tuple[Tensor, None], out: Sequence[Tensor], x: Tensor, dim: int
) -> Cotangents:
    """Each cotangent goes to the element that was the extremum."""
    if x.dim() == 0:
        return (cotangent[0],)
    return (cotangent[0].new_zeros(x.shape).scatter_add(dim, out[1], cotangent[0]),)


@vjp(aten.logcumsumexp.default)
def logcumsumexp(cotangent: Tensor, out: Tensor, x: Tensor, dim: int) -> Cotangents:
    """dx_j = sum_{i >= j} g_i exp(x_j - out_i)

    Torch's formula takes the logarithm of the cotangent, so that it has no derivative where the
    cotangent is zero.
    """
    if x.dim() == 0:
        return (cotangent,)
    return (exponential_scan(cotangent, -conjugate(out), conjugate(x), dim, True),)


@vjp(exponential_scan)
def scan_of_exponentials(
    cotangent: Tensor, out: Tensor, v: Tensor, a: Tensor, b: Tensor, dim: int, reverse: bool
) -> Cotangents:
    """Of sum_j v_j exp(a_j + b_i): its transpose is the scan from the other end."""
    of_v = exponential_scan(cotangent, conjugate(b), conjugate(a), dim, not reverse)
    return of_v, lambda: conjugate(v) * of_v, lambda: cotangent * conjugate(out)
