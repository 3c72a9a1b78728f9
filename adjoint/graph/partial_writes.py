"""Writes to a part of a tensor: to a row, a slice, or the elements that indices name.

Graphs are pure, so such a write is a new value of the whole tensor, `written(base, ...)`.  A plan
in which nothing reads the old value any more lets the same function write to the memory of `base`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from adjoint.graph.leaves import copy_with_strides
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

ViewCall: TypeAlias = tuple[OpOverload, tuple[object, ...], dict[str, object]]
"""A view op with its arguments, but for the tensor."""

Undo: TypeAlias = list[tuple[Callable[..., object], tuple[object, ...]]]
"""Calls that put back what writes have replaced, in the order of the writes."""


@dataclass(frozen=True)
class Region:
    """The elements that an op writes: how to read them, and how to write them."""

    read: Callable[..., torch.Tensor]
    write: Callable[..., object]
    places: int
    """How many arguments after the tensor say where the elements are."""


_WHOLE = Region(aten.clone.default, aten.copy_.default, 0)
_AT_INDICES = Region(aten.index.Tensor, aten.index_put_.default, 1)
_GATHERED = Region(aten.gather.default, aten.scatter_.src, 2)
_SELECTED = Region(aten.index_select.default, aten.index_copy_.default, 2)

REGIONS: dict[object, Region] = {
    aten.copy.default: _WHOLE,
    aten.fill.Scalar: _WHOLE,
    aten.fill.Tensor: _WHOLE,
    aten.index_put.default: _AT_INDICES,
    aten.scatter.src: _GATHERED,
    aten.scatter.value: _GATHERED,
    aten.scatter.reduce: _GATHERED,
    aten.scatter.value_reduce: _GATHERED,
    aten.scatter_add.default: _GATHERED,
    aten.scatter_reduce.two: _GATHERED,
    aten.index_add.default: _SELECTED,
    aten.index_copy.default: _SELECTED,
    aten.index_fill.int_Scalar: _SELECTED,
    aten.index_fill.int_Tensor: _SELECTED,
    aten.index_reduce.default: _SELECTED,
}

IN_PLACE: dict[object, Callable[..., object]] = {
    op: getattr(getattr(aten, f"{op._opname}_"), op._overloadname)  # type: ignore[attr-defined]
    for op in REGIONS
}

# The op that writes where a view op reads.
SCATTERS: dict[object, OpOverload] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


def written(
    base: torch.Tensor,
    views: Sequence[ViewCall],
    op: OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    out: torch.Tensor | None = None,
    undo: Undo | None = None,
) -> torch.Tensor:
    """`base` after `op` has written to a view of it.

    `out`: where the result is stored, which may be the memory of `base` itself.  What is replaced
    there is added to `undo`.
    """
    if out is None:
        out = copy_with_strides(base)
    elif out.data_ptr() != base.data_ptr():
        out.copy_(base)
    # Kernels that write to an input do not advance its version counter either.
    part = out.data
    for view, place, named in views:
        part = view(part, *place, **named)
    if undo is not None:
        region = REGIONS[op]
        where = args[: region.places]
        try:
            replaced = region.read(part, *where)
        except (IndexError, RuntimeError):
            # The op raises an error of its own, or accepts indices that reading does not.
            op, args, kwargs = aten.copy.default, (op(part, *args, **kwargs),), {}
            region, where, replaced = _WHOLE, (), part.clone()
        undo.append((region.write, (part, *where, replaced)))
    IN_PLACE[op](part, *args, **kwargs)
    return out


def written_there(
    base: torch.Tensor,
    views: Sequence[ViewCall],
    op: OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> torch.Tensor:
    """`written`, in the memory of `base`, whose old value nothing reads any more."""
    return written(base, views, op, args, kwargs, out=base)


def put_back(undo: Undo) -> None:
    """Undo writes, the last one first."""
    for write, args in reversed(undo):
        write(*args)
