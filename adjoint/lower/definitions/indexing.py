"""Gathers and scatters: elements read from, or added to, the places that index tensors name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.dtypes import HALVES
from adjoint.graph.metadata import tensor_of, value_at
from adjoint.loops.expressions import Expression, cast, constant
from adjoint.loops.pointwise import where
from adjoint.lower.definitions.elements import (
    Bound,
    Definition,
    Element,
    Mapped,
    Reader,
    Scattered,
    decline_if,
)
from adjoint.lower.index import Gathered, Index
from adjoint.lower.sizes import Size, size_of, sizes
from adjoint.lower.views import MultiIndex, broadcast, dtype_of, rank_of, shape_of
from adjoint.open_types import OpArgument

aten = torch.ops.aten


def _wrapped(value: Expression, size: Size, reader: Reader) -> Index:
    """An index loaded from memory; a negative one counts from the end."""
    value = cast(value, torch.int64)
    wrapped = where(value < 0, value + reader.size(size), value)
    return Index(((Gathered(wrapped, size), 1),))


def _plain(value: Expression, size: Size) -> Index:
    """An index loaded from memory that is not negative."""
    return Index(((Gathered(cast(value, torch.int64), size), 1),))


def _is_index(node: object) -> bool:
    return isinstance(node, fx.Node) and dtype_of(node) in (torch.int64, torch.int32)


@dataclass(frozen=True)
class _Indexing:
    """`x[indices]`: how dimensions of the result correspond to those of `x`."""

    x: tuple[Size, ...]
    indices: tuple[fx.Node | None, ...]
    common: tuple[Size, ...]
    """The broadcast shape of the index tensors."""
    at: int
    """The dimension of the result at which `common` begins."""

    @classmethod
    def of(cls, x: fx.Node, indices: Sequence[OpArgument]) -> _Indexing:
        given = [(place, each) for place, each in enumerate(indices) if each is not None]
        decline_if(not given or not all(_is_index(each) for _, each in given))
        places = [place for place, _ in given]
        together = places == list(range(places[0], places[-1] + 1))
        common = torch.broadcast_shapes(*(tensor_of(each).shape for _, each in given))
        return cls(shape_of(x), tuple(indices), sizes(common), places[0] if together else 0)

    def place(self, index: MultiIndex, reader: Reader) -> MultiIndex:
        """The index into `x` for an index of the result."""
        run = index[self.at : self.at + len(self.common)]
        rest = iter((*index[: self.at], *index[self.at + len(self.common) :]))
        place: list[Index] = []
        for dim, size in enumerate(self.x):
            picked = self.indices[dim] if dim < len(self.indices) else None
            if picked is None:
                place.append(next(rest))
            else:
                value = reader.read(picked, broadcast(run, shape_of(picked)))
                place.append(_wrapped(value, size, reader))
        return tuple(place)

    def bounds(self, node: fx.Node) -> tuple[Bound, ...]:
        return tuple(
            _bound(node, picked, size * -1, size, dim)
            for dim, (picked, size) in enumerate(zip(self.indices, self.x, strict=False))
            if picked is not None
        )


def _bound(node: fx.Node, picked: fx.Node, low: Size, high: Size, dim: int) -> Bound:
    """The range of the indices `picked`, and the error of the operator that `node` came from."""
    op = node.meta.get("part_of", node.target)
    error = RuntimeError if op in _RAISING_RUNTIME_ERRORS else IndexError
    if op is aten.index_add.default and rank_of(node) > 1:
        error = RuntimeError
    return Bound(picked, low, high, str(op.overloadpacket), dim, error)


# The others raise IndexErrors.
_RAISING_RUNTIME_ERRORS = (aten.gather.default, aten.scatter_add.default)


def _index(node: fx.Node, x: fx.Node, indices: Sequence[object]) -> Mapped:
    indexing = _Indexing.of(x, indices)
    return Mapped(
        lambda index, reader: reader.read(x, indexing.place(index, reader)), indexing.bounds(node)
    )


def _index_select(node: fx.Node, x: fx.Node, dim: int, picked: fx.Node) -> Mapped:
    decline_if(rank_of(x) == 0 or rank_of(picked) == 0)
    dim %= rank_of(x)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        place = _plain(reader.read(picked, (index[dim],)), shape_of(x)[dim])
        return reader.read(x, (*index[:dim], place, *index[dim + 1 :]))

    return Mapped(element, (_bound(node, picked, 0, shape_of(x)[dim], dim),))


def _embedding(
    node: fx.Node, weight: fx.Node, picked: fx.Node, *options: object, **named: object
) -> Mapped:
    rank = rank_of(picked)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        row = _plain(reader.read(picked, index[:rank]), shape_of(weight)[0])
        return reader.read(weight, (row, index[rank]))

    return Mapped(element, (_bound(node, picked, 0, shape_of(weight)[0], 0),))


def _gather(node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, **options: object) -> Mapped:
    decline_if(rank_of(x) == 0 or rank_of(picked) == 0)
    dim %= rank_of(x)

    def element(index: MultiIndex, reader: Reader) -> Expression:
        place = _plain(reader.read(picked, index), shape_of(x)[dim])
        return reader.read(x, (*index[:dim], place, *index[dim + 1 :]))

    return Mapped(element, (_bound(node, picked, 0, shape_of(x)[dim], dim),))


def _index_add(
    node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, source: fx.Node, *, alpha: float = 1
) -> Scattered:
    decline_if(rank_of(source) == 0 or rank_of(picked) == 0)
    dim %= rank_of(x)

    def place(index: MultiIndex, reader: Reader) -> MultiIndex:
        to = _plain(reader.read(picked, (index[dim],)), shape_of(x)[dim])
        return (*index[:dim], to, *index[dim + 1 :])

    def element(index: MultiIndex, reader: Reader) -> Expression:
        value = reader.read(source, index)
        return value if alpha == 1 else value * alpha

    bounds = (_bound(node, picked, 0, shape_of(x)[dim], dim),)
    return _scattered(node, x, source, place, element, bounds)


def _scattered(
    node: fx.Node,
    x: fx.Node,
    source: fx.Node,
    place: Callable[[MultiIndex, Reader], MultiIndex],
    element: Element,
    bounds: tuple[Bound, ...],
    domain: tuple[Size, ...] | None = None,
) -> Scattered:
    # Half types would be rounded at every addition.
    decline_if(dtype_of(node) in (*HALVES, torch.bool))
    return Scattered(
        shape_of(source) if domain is None else domain,
        source,
        "add",
        lambda index, reader: reader.read(x, index),
        place,
        element,
        bounds,
    )


def _index_put(
    node: fx.Node, x: fx.Node, indices: Sequence[object], values: fx.Node, accumulate: bool = False
) -> Scattered:
    decline_if(not accumulate)
    indexing = _Indexing.of(x, indices)
    rest = [
        size
        for dim, size in enumerate(indexing.x)
        if dim >= len(indexing.indices) or indexing.indices[dim] is None
    ]
    domain = (*rest[: indexing.at], *indexing.common, *rest[indexing.at :])

    def element(index: MultiIndex, reader: Reader) -> Expression:
        return reader.read(values, broadcast(index, shape_of(values)))

    return _scattered(
        node, x, values, indexing.place, element, indexing.bounds(node), tuple(domain)
    )


def _scatter_add(
    node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, source: fx.Node
) -> Scattered:
    decline_if(rank_of(x) == 0 or rank_of(picked) == 0)
    dim %= rank_of(x)

    def place(index: MultiIndex, reader: Reader) -> MultiIndex:
        to = _plain(reader.read(picked, index), shape_of(x)[dim])
        return (*index[:dim], to, *index[dim + 1 :])

    return _scattered(
        node,
        x,
        source,
        place,
        lambda index, reader: reader.read(source, index),
        (_bound(node, picked, 0, shape_of(x)[dim], dim),),
        shape_of(picked),
    )


def _embedding_backward(
    node: fx.Node,
    cotangent: fx.Node,
    picked: fx.Node,
    count: object,
    padding: OpArgument,
    by_frequency: bool,
) -> Scattered:
    decline_if(by_frequency or not isinstance(padding, int))
    rank, dtype, rows = rank_of(picked), dtype_of(node), size_of(value_at(count))
    decline_if(dtype in HALVES)

    def place(index: MultiIndex, reader: Reader) -> MultiIndex:
        return (_plain(reader.read(picked, index[:rank]), rows), index[rank])

    def element(index: MultiIndex, reader: Reader) -> Expression:
        value = reader.read(cotangent, index)
        if padding < 0:
            return value
        row = cast(reader.read(picked, index[:rank]), torch.int64)
        return where(row.equals(padding), constant(0, value.dtype), value)

    return Scattered(
        shape_of(cotangent),
        cotangent,
        "add",
        lambda index, reader: constant(0, dtype),
        place,
        element,
        (_bound(node, picked, 0, rows, 0),),
    )


RULES: dict[object, Callable[..., Definition]] = {
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten.index_select.default: _index_select,
    aten.scatter_add.default: _scatter_add,
}
