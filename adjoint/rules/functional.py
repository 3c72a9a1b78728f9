"""Ops that exist only so that graphs can be functional: torch gives them no derivative."""

from __future__ import annotations

from typing import Any

import torch

from adjoint.graph.operations import with_data
from adjoint.rules.registry import vjp

aten = torch.ops.aten


@vjp(with_data)
def with_data_vjp(cotangent: Any, out: Any, history: Any, data: Any) -> Any:
    """The history is the derivative; the data has none."""
    return (cotangent, None)


@vjp(aten.copy.default)
def copy(cotangent: Any, out: Any, x: Any, source: Any, *_: Any) -> Any:
    """Nothing is left of x; the source may have been broadcast and converted."""
    return (None, cotangent)


@vjp(aten.fill.Tensor)
def fill_tensor(cotangent: Any, out: Any, x: Any, value: Any) -> Any:
    """Every element is the value."""
    return (None, cotangent.sum())


@vjp(aten.lift_fresh_copy.default, aten.clone.default)
def clone(cotangent: Any, out: Any, x: Any, **_: Any) -> Any:
    """The same numbers elsewhere."""
    return (cotangent,)
