"""Functional counterparts of in-place ops, and our own graph operators."""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.graph.operations import provided, with_data
from adjoint.host_memory import from_host, to_host
from adjoint.rules.registry import Cotangents, vjp

aten = torch.ops.aten


@vjp(with_data)
def with_data_vjp(cotangent: Tensor, out: Tensor, history: Tensor, data: Tensor) -> Cotangents:
    """The whole cotangent goes to `history`; `data` has no derivative."""
    return (cotangent, None)


@vjp(provided)
def provided_vjp(
    cotangent: Tensor, out: Tensor, value: Tensor, condition: Tensor, message: str
) -> Cotangents:
    """The identity in `value`."""
    return (cotangent,)


@vjp(to_host, from_host)
def moved(cotangent: Tensor, out: Tensor, x: Tensor, *_: object) -> Cotangents:
    """The identity.  A cotangent is copied at once: others may read it in host memory."""
    return (aten._to_copy.default(cotangent, device=x.device),)


@vjp(aten.copy.default)
def copy(cotangent: Tensor, out: Tensor, x: Tensor, source: Tensor, *_: object) -> Cotangents:
    """x is overwritten by the source, which may have been broadcast and converted."""
    return (None, cotangent)


@vjp(aten.fill.Tensor)
def fill_tensor(cotangent: Tensor, out: Tensor, x: Tensor, value: Tensor) -> Cotangents:
    """Every element is the value."""
    return (None, cotangent.sum())


@vjp(aten.lift_fresh_copy.default, aten.clone.default)
def clone(cotangent: Tensor, out: Tensor, x: Tensor, **_: object) -> Cotangents:
    """The identity."""
    return (cotangent,)


@vjp(aten.select_scatter.default)
def select_scatter(
    cotangent: Tensor, out: Tensor, x: Tensor, new: Tensor, dim: int, index: int
) -> Cotangents:
    """The selected part comes from `new`, the rest from x."""
    kept = aten.select_scatter.default(cotangent, torch.zeros_like(new), dim, index)
    return kept, cotangent.select(dim, index)


@vjp(aten.slice_scatter.default)
def slice_scatter(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    new: Tensor,
    dim: int = 0,
    *place: object,
    **named: object,
) -> Cotangents:
    """The slice comes from `new`, the rest from x."""
    kept = aten.slice_scatter.default(cotangent, torch.zeros_like(new), dim, *place, **named)
    return kept, aten.slice.Tensor(cotangent, dim, *place, **named)


@vjp(aten.diagonal_scatter.default)
def diagonal_scatter(
    cotangent: Tensor, out: Tensor, x: Tensor, new: Tensor, *place: object, **named: object
) -> Cotangents:
    """The diagonal comes from `new`, the rest from x."""
    kept = aten.diagonal_scatter.default(cotangent, torch.zeros_like(new), *place, **named)
    return kept, aten.diagonal.default(cotangent, *place, **named)


@vjp(aten.zero.default, aten.fill.Scalar)
def overwritten(cotangent: Tensor, out: Tensor, x: Tensor, *_: object) -> Cotangents:
    """x is overwritten."""
    return (None,)
