"""Running sums and extrema along an axis."""

from __future__ import annotations

from typing import Any

import torch

from adjoint.graph.operations import exponential_scan
from adjoint.rules.registry import vjp

aten = torch.ops.aten


@vjp(aten.cumsum.default)
def cumsum(cotangent: Any, out: Any, x: Any, dim: int, **_: Any) -> Any:
    """Each element is in every later sum."""
    return (_from_the_end(cotangent, dim),)


def _from_the_end(value: torch.Tensor, dim: int) -> torch.Tensor:
    return value.flip(dim).cumsum(dim).flip(dim) if value.dim() else value


@vjp(aten.cummax.default, aten.cummin.default)
def extremum(cotangent: Any, out: Any, x: Any, dim: int) -> Any:
    """To the element that was the extremum."""
    if x.dim() == 0:
        return (cotangent[0],)
    return (cotangent[0].new_zeros(x.shape).scatter_add(dim, out[1], cotangent[0]),)


@vjp(aten.logcumsumexp.default)
def logcumsumexp(cotangent: Any, out: Any, x: Any, dim: int) -> Any:
    """dx_j = sum_{i >= j} g_i exp(x_j - out_i)

    torch's formula takes the logarithm of the cotangent: linear, but not where that is zero.
    """
    if x.dim() == 0:
        return (cotangent,)
    return (exponential_scan(cotangent, -_conjugate(out), _conjugate(x), dim, True),)


@vjp(exponential_scan)
def scan_of_exponentials(
    cotangent: Any, out: Any, v: Any, a: Any, b: Any, dim: int, reverse: bool
) -> Any:
    """Of sum_j v_j exp(a_j + b_i): its transpose is the scan from the other end."""
    of_v = exponential_scan(cotangent, _conjugate(b), _conjugate(a), dim, not reverse)
    return of_v, lambda: _conjugate(v) * of_v, lambda: cotangent * _conjugate(out)


def _conjugate(value: torch.Tensor) -> torch.Tensor:
    return value.conj() if value.is_complex() else value
