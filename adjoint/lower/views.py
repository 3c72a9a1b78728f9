"""Views are never computed: an index into a view becomes an index into the tensor behind it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument

from adjoint.graph.metadata import tensor_of, value_of
from adjoint.lower.index import Index, reshaped
from adjoint.lower.sizes import Size, is_one, size_of, sizes

aten = torch.ops.aten

# One index for each dimension.
MultiIndex: TypeAlias = "tuple[Index, ...]"
Rule: TypeAlias = Callable[..., MultiIndex]


def shape_of(node: fx.Node) -> tuple[Size, ...]:
    return sizes(tensor_of(node).shape)


def rank_of(node: fx.Node) -> int:
    return tensor_of(node).dim()


def dtype_of(node: fx.Node) -> torch.dtype:
    return tensor_of(node).dtype


def _reshape(node: fx.Node, index: MultiIndex, source: fx.Node, *args: object) -> MultiIndex:
    return reshaped(index, shape_of(node), shape_of(source))


def _same(node: fx.Node, index: MultiIndex, source: fx.Node, *args: object) -> MultiIndex:
    return index


def _reverse(node: fx.Node, index: MultiIndex, source: fx.Node) -> MultiIndex:
    return tuple(reversed(index))


def _transpose(
    node: fx.Node, index: MultiIndex, source: fx.Node, one: int, other: int
) -> MultiIndex:
    moved = list(index)
    if moved:
        moved[one], moved[other] = moved[other], moved[one]
    return tuple(moved)


def _permute(node: fx.Node, index: MultiIndex, source: fx.Node, dims: Sequence[int]) -> MultiIndex:
    moved: list[Index] = [Index()] * len(index)
    for place, dim in enumerate(dims):
        moved[dim] = index[place]
    return tuple(moved)


def _expand(
    node: fx.Node, index: MultiIndex, source: fx.Node, *args: object, **kwargs: object
) -> MultiIndex:
    return broadcast(index, shape_of(source))


def broadcast(index: MultiIndex, shape: Sequence[Size]) -> MultiIndex:
    """The index into a tensor of sizes `shape` that broadcasts to the element at `index`."""
    trailing = index[len(index) - len(shape) :]
    return tuple(
        Index() if is_one(size) else each for each, size in zip(trailing, shape, strict=True)
    )


def _select(node: fx.Node, index: MultiIndex, source: fx.Node, dim: int, at: object) -> MultiIndex:
    size = rank_of(source)
    dim %= size
    place = size_of(at)
    if isinstance(place, int) and place < 0:
        place = place + shape_of(source)[dim]
    return (*index[:dim], Index((), place), *index[dim:])


def _slice(
    node: fx.Node,
    index: MultiIndex,
    source: fx.Node,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: int = 1,
) -> MultiIndex:
    dim %= rank_of(source)
    size = shape_of(source)[dim]
    first = 0 if start is None else size_of(start)
    if not isinstance(first, int) or (first and not isinstance(size, int)):
        raise NotImplementedError("a slice from a symbolic place")
    if first < 0:
        first = max(0, first + int(size))
    if isinstance(size, int):
        first = min(first, size)
    return (*index[:dim], index[dim] * size_of(step) + first, *index[dim + 1 :])


def _flip(node: fx.Node, index: MultiIndex, source: fx.Node, dims: Sequence[int]) -> MultiIndex:
    flipped, shape = list(index), shape_of(source)
    for dim in dims:
        flipped[dim] = flipped[dim] * -1 + (shape[dim] - 1)
    return tuple(flipped)


def _diagonal(
    node: fx.Node, index: MultiIndex, source: fx.Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> MultiIndex:
    rank = rank_of(source)
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


def _unfold(
    node: fx.Node, index: MultiIndex, source: fx.Node, dim: int, size: int, step: int
) -> MultiIndex:
    if rank_of(source) == 0:
        return ()
    dim %= rank_of(source)
    return (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1])


def _split(
    node: fx.Node, index: MultiIndex, source: fx.Node, length: object, dim: int = 0
) -> MultiIndex:
    """The view of `getitem(split(source, ...), k)`."""
    part: int = node.args[1]  # type: ignore[assignment]
    dim %= rank_of(source)
    if isinstance(length, (list, tuple)):
        before: Size = sum((size_of(each) for each in length[:part]), 0)
    else:
        before = size_of(length) * part
    return (*index[:dim], index[dim] + before, *index[dim + 1 :])


def _unbind(node: fx.Node, index: MultiIndex, source: fx.Node, dim: int = 0) -> MultiIndex:
    part: int = node.args[1]  # type: ignore[assignment]
    dim %= rank_of(source)
    return (*index[:dim], Index((), part), *index[dim:])


VIEWS: dict[object, Rule] = {
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
    aten.t.default: _reverse,
    aten.transpose.int: _transpose,
    aten.unfold.default: _unfold,
    aten.unsqueeze.default: _reshape,
    aten.view.default: _reshape,
}

# Operators with several results, each of which is a view.
PARTS: dict[object, Rule] = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
}


def view_of(node: fx.Node) -> tuple[fx.Node, Callable[[MultiIndex], MultiIndex]] | None:
    """The tensor behind a view, and the map of indices from the view to it; None if no view."""
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
    to_source = rule
    return source, lambda index: to_source(node, index, source, *args, **kwargs)


def _number(arg: Argument) -> object:
    """An argument with the fake values of sizes that the graph computes."""
    return fx.map_arg(arg, value_of)
