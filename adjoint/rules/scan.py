"""Running sums and extrema along an axis."""

from __future__ import annotations

from typing import Any

import torch

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
