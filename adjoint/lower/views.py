"""Views cost nothing: where an element of a view is, in the tensor that it is a view of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from adjoint.lower.index import Index, reshaped
from adjoint.lower.sizes import Size, is_one, size_of, sizes

aten = torch.ops.aten

Where: TypeAlias = "tuple[Index, ...]"
Rule: TypeAlias = Callable[..., Where]


def shape_of(node: fx.Node) -> tuple[Size, ...]:
    return sizes(node.meta["val"].shape)


def _reshape(node: fx.Node, index: Where, source: fx.Node, *args: Any) -> Where:
    return reshaped(index, shape_of(node), shape_of(source))


def _same(node: fx.Node, index: Where, source: fx.Node, *args: Any) -> Where:
    return index


def _turn(node: fx.Node, index: Where, source: fx.Node) -> Where:
    return tuple(reversed(index))


def _transpose(node: fx.Node, index: Where, source: fx.Node, one: int, other: int) -> Where:
    moved = list(index)
    if moved:
        moved[one], moved[other] = moved[other], moved[one]
    return tuple(moved)


def _permute(node: fx.Node, index: Where, source: fx.Node, dims: Sequence[int]) -> Where:
    moved: list[Index] = [Index()] * len(index)
    for place, dim in enumerate(dims):
        moved[dim] = index[place]
    return tuple(moved)


def _expand(node: fx.Node, index: Where, source: fx.Node, *args: Any, **kwargs: Any) -> Where:
    return broadcast(index, shape_of(source))


def broadcast(index: Where, shape: Sequence[Size]) -> Where:
    """The element of a smaller tensor that meets the one at `index`."""
    trailing = index[len(index) - len(shape) :]
    return tuple(
        Index() if is_one(size) else each for each, size in zip(trailing, shape, strict=True)
    )


def _select(node: fx.Node, index: Where, source: fx.Node, dim: int, at: Any) -> Where:
    size = source.meta["val"].dim()
    dim %= size
    place = size_of(at)
    if isinstance(place, int) and place < 0:
        place = place + shape_of(source)[dim]
    return (*index[:dim], Index((), place), *index[dim:])


def _slice(
    node: fx.Node,
    index: Where,
    source: fx.Node,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Where:
    dim %= source.meta["val"].dim()
    size = shape_of(source)[dim]
    first = 0 if start is None else size_of(start)
    if not isinstance(first, int) or (first and not isinstance(size, int)):
        raise NotImplementedError("a slice from a symbolic place")
    if first < 0:
        first = max(0, first + int(size))
    if isinstance(size, int):
        first = min(first, size)
    return (*index[:dim], index[dim] * size_of(step) + first, *index[dim + 1 :])


def _flip(node: fx.Node, index: Where, source: fx.Node, dims: Sequence[int]) -> Where:
    flipped, shape = list(index), shape_of(source)
    for dim in dims:
        flipped[dim] = flipped[dim] * -1 + (shape[dim] - 1)
    return tuple(flipped)


def _diagonal(
    node: fx.Node, index: Where, source: fx.Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Where:
    rank = source.meta["val"].dim()
    dim1, dim2 = dim1 % rank, dim2 % rank
    along = index[-1]
    rest = iter(index[:-1])
    return tuple(
        along + max(0, -offset)
        if dim == dim1
        else along + max(0, offset)
        if dim == dim2
        else next(rest)
        for dim in range(rank)
    )


def _unfold(node: fx.Node, index: Where, source: fx.Node, dim: int, size: int, step: int) -> Where:
    if source.meta["val"].dim() == 0:
        return ()
    dim %= source.meta["val"].dim()
    return (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1])


def _split(node: fx.Node, index: Where, source: fx.Node, length: Any, dim: int = 0) -> Where:
    """`getitem(split(source, ...), k)`."""
    part: int = node.args[1]  # type: ignore[assignment]
    dim %= source.meta["val"].dim()
    if isinstance(length, (list, tuple)):
        before: Size = sum((size_of(each) for each in length[:part]), 0)
    else:
        before = size_of(length) * part
    return (*index[:dim], index[dim] + before, *index[dim + 1 :])


def _unbind(node: fx.Node, index: Where, source: fx.Node, dim: int = 0) -> Where:
    part: int = node.args[1]  # type: ignore[assignment]
    dim %= source.meta["val"].dim()
    return (*index[:dim], Index((), part), *index[dim:])


VIEWS: dict[Any, Rule] = {
    aten._unsafe_view.default: _reshape,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.diagonal.default: _diagonal,
    aten.expand.default: _expand,
    aten.flip.default: _flip,
    aten.lift_fresh_copy.default: _same,
    aten.permute.default: _permute,
    aten.reshape.default: _reshape,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.t.default: _turn,
    aten.transpose.int: _transpose,
    aten.unfold.default: _unfold,
    aten.unsqueeze.default: _reshape,
    aten.view.default: _reshape,
}

# Views among several results of one op.
PARTS: dict[Any, Rule] = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
}


def view_of(node: fx.Node) -> tuple[fx.Node, Callable[[Where], Where]] | None:
    """What `node` is a view of, and where its elements are there; None if it is no view."""
    if node.op != "call_function":
        return None
    rule, call = VIEWS.get(node.target), node
    if rule is None and node.target is operator.getitem:
        call = node.args[0]  # type: ignore[assignment]
        rule = PARTS.get(call.target)
    if rule is None or not isinstance(call.args[0], fx.Node):
        return None
    source, args = call.args[0], [_number(arg) for arg in call.args[1:]]
    kwargs = {name: _number(arg) for name, arg in call.kwargs.items()}
    found = rule
    return source, lambda index: found(node, index, source, *args, **kwargs)


def _number(arg: Any) -> Any:
    """A size that the graph computes, as its fake value."""
    return fx.map_arg(arg, lambda node: node.meta["val"])
