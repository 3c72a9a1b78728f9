"""Concatenation, padding, repetition, triangles, and the backward operators of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.loops.expressions import Expression, Guarded, apply, cast, constant
from adjoint.loops.pointwise import where
from adjoint.lower.definitions.elements import Definition, Mapped, Reader, decline_if
from adjoint.lower.index import Index
from adjoint.lower.sizes import Size, is_one
from adjoint.lower.views import MultiIndex, dtype_of, rank_of, shape_of
from adjoint.open_types import OpArgument
from adjoint.torch_private.symbols import same_number

aten = torch.ops.aten


# Each part of a concatenation is a branch for each element.
MAX_CONCATENATED = 32


def _cat(node: fx.Node, tensors: Sequence[fx.Node], dim: int = 0) -> Mapped:
    # Eager skips empty tensors of one dimension, whatever the rank of the others.
    parts = [t for t in tensors if not (rank_of(t) == 1 and shape_of(t)[0] == 0)]
    decline_if(not parts or len(parts) > MAX_CONCATENATED)
    dim %= rank_of(node)
    dtype = dtype_of(node)
    starts: list[Size] = [0]
    for part in parts:
        starts.append(starts[-1] + shape_of(part)[dim])

    def element(index: MultiIndex, reader: Reader) -> Expression:
        def part(number: int) -> Expression:
            moved = (*index[:dim], index[dim] + starts[number] * -1, *index[dim + 1 :])
            return cast(reader.read(parts[number], moved), dtype)

        here = reader.position(index[dim])
        zero = constant(0, dtype)
        value: Expression = zero
        for number in reversed(range(len(parts))):
            inside = here < reader.size(starts[number + 1])
            if number:
                inside = apply("and", here >= reader.size(starts[number]), inside)
            value = Guarded(inside, part(number), value)
        return value

    return Mapped(element)


def _pad(node: fx.Node, x: fx.Node, pad: Sequence[OpArgument], value: float = 0) -> Mapped:
    rank, shape, dtype = rank_of(x), shape_of(x), dtype_of(node)
    decline_if(not all(isinstance(each, int) for each in pad))
    before = [0] * rank
    touched = [False] * rank
    for place in range(len(pad) // 2):
        before[rank - 1 - place] = pad[2 * place]
        touched[rank - 1 - place] = bool(pad[2 * place] or pad[2 * place + 1])

    def element(index: MultiIndex, reader: Reader) -> Expression:
        moved = tuple(each + -first for each, first in zip(index, before, strict=True))
        conditions: list[Expression] = []
        for dim in range(rank):
            if touched[dim]:
                here = reader.position(moved[dim])
                conditions += [here >= 0, here < reader.size(shape[dim])]
        return _guarded(conditions, reader.read(x, moved), constant(value, dtype))

    return Mapped(element)


def _guarded(
    conditions: Sequence[Expression], value: Expression, otherwise: Expression
) -> Expression:
    if not conditions:
        return value
    every = conditions[0]
    for condition in conditions[1:]:
        every = apply("and", every, condition)
    return Guarded(every, value, otherwise)


def _select_backward(node: fx.Node, x: fx.Node, shape: object, dim: int, at: int) -> Mapped:
    dim %= rank_of(node)
    size = shape_of(node)[dim]
    decline_if(not isinstance(at, int))
    place: Size = at if at >= 0 else at + size

    def element(index: MultiIndex, reader: Reader) -> Expression:
        inside = reader.position(index[dim]).equals(reader.size(place))
        value = reader.read(x, (*index[:dim], *index[dim + 1 :]))
        return where(inside, value, constant(0, value.dtype))

    return Mapped(element)


def _slice_backward(
    node: fx.Node, x: fx.Node, shape: object, dim: int, start: OpArgument, end: object, step: object
) -> Mapped:
    dim %= rank_of(node)
    size = shape_of(node)[dim]
    decline_if(step != 1 or not isinstance(start, int) or not isinstance(size, int))
    assert isinstance(size, int)
    first = min(max(0, start if start >= 0 else start + size), size)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        moved = index[dim] + -first
        here = reader.position(moved)
        value = reader.read(x, (*index[:dim], moved, *index[dim + 1 :]))
        conditions = [] if first == 0 else [here >= 0]
        if not same_number(shape_of(x)[dim] + first, size):
            conditions.append(here < reader.size(shape_of(x)[dim]))
        return _guarded(conditions, value, constant(0, value.dtype))

    return Mapped(element)


def _repeat(node: fx.Node, x: fx.Node, repeats: Sequence[object]) -> Mapped:
    shape = shape_of(x)
    extra = len(repeats) - len(shape)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        inner = index[extra:]
        wrapped = tuple(
            Index() if is_one(size) else each % size
            for each, size in zip(inner, shape, strict=True)
        )
        return reader.read(x, wrapped)

    return Mapped(element)


def _triangle(upper: bool) -> Callable[..., Mapped]:
    def rule(node: fx.Node, x: fx.Node, diagonal: int = 0) -> Mapped:
        def element(index: MultiIndex, reader: Reader) -> Expression:
            value = reader.read(x, index)
            offset = reader.position(index[-1] + index[-2] * -1)
            inside = offset >= diagonal if upper else offset <= diagonal
            return where(inside, value, constant(0, value.dtype))

        return Mapped(element)

    return rule


RULES: dict[object, Callable[..., Definition]] = {
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.repeat.default: _repeat,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
    aten.tril.default: _triangle(upper=False),
    aten.triu.default: _triangle(upper=True),
}
