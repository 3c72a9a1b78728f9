"""What the elements of a tensor are: mapped from others, reduced from others, or scattered into it.

A definition says how one element is computed from elements of the arguments, without saying when or
whether those are in memory.  An op without a definition is called as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx

from adjoint.loops.expressions import (
    Constant,
    Expression,
    Guarded,
    apply,
    cast,
    constant,
)
from adjoint.lower.index import Gathered, Index
from adjoint.lower.pointwise import MASKS, TABLE, Pointwise, computed_in, where
from adjoint.lower.sizes import Size, is_one, product, same, size_of, sizes
from adjoint.lower.views import Where, broadcast, shape_of

aten = torch.ops.aten


class Reader(Protocol):
    """Gives the elements that a definition asks for."""

    def read(self, node: fx.Node, index: Where) -> Expression: ...

    def size(self, size: Size) -> Expression:
        """A size, as an int64."""
        ...

    def position(self, index: Index) -> Expression:
        """An index, as an int64."""
        ...


Element: TypeAlias = Callable[[Where, Reader], Expression]


@dataclass(frozen=True)
class Bound:
    """Indices in `node` must be in range(low, high); eager raises if not."""

    node: fx.Node
    low: Size
    high: Size


@dataclass(frozen=True)
class Mapped:
    element: Element
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """Elements of `domain`, combined along `dims`."""

    domain: tuple[Size, ...]
    dims: tuple[int, ...]
    source: fx.Node
    operator: str
    start: Constant
    element: Element
    finish: Callable[[Expression, Reader], Expression]


@dataclass(frozen=True)
class Scattered:
    """Each element of `domain` is combined with the one at `place`, which begins as `start`."""

    domain: tuple[Size, ...]
    source: fx.Node
    operator: str
    start: Element
    place: Callable[[Where, Reader], Where]
    element: Element
    bounds: tuple[Bound, ...] = field(default=())


Definition: TypeAlias = Mapped | Reduced | Scattered


def definition_of(node: fx.Node) -> Definition | None:
    """How to compute `node`, unless it is to be called as it is."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    if node.target in TABLE:
        return _pointwise(node)
    rule = _RULES.get(node.target)
    try:
        return None if rule is None else rule(node, *node.args, **node.kwargs)
    except _Declined:
        return None


class _Declined(Exception):
    """Not in this case."""


def _decline_if(condition: bool) -> None:
    if condition:
        raise _Declined


def dtype_of(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


# Pointwise


def _pointwise(node: fx.Node) -> Mapped | None:
    entry = TABLE[node.target]
    result = dtype_of(node)
    numbers = [a for a in (*node.args, *node.kwargs.values()) if not isinstance(a, fx.Node)]
    if any(isinstance(number, complex) for number in numbers):
        return None
    tensors = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node)]
    if not tensors or not all(isinstance(a.meta["val"], torch.Tensor) for a in tensors):
        return None
    if not result.is_floating_point and _only_torch_can(node, entry):
        return None
    meeting = computed_in(_promoted(node) if entry.compares else result)
    masks = MASKS.get(node.target, ())
    options = {k: v for k, v in node.kwargs.items() if k not in _LAYOUT}

    def element(index: Where, reader: Reader) -> Expression:
        def argument(place: int, arg: Any) -> Any:
            if not isinstance(arg, fx.Node):
                return arg
            value = reader.read(arg, broadcast(index, shape_of(arg)))
            return value if place in masks else cast(value, meeting)

        args = [argument(place, arg) for place, arg in enumerate(node.args)]
        kwargs = {name: argument(-1, arg) for name, arg in options.items()}
        if entry.typed:
            kwargs["result"] = result
        return cast(entry.formula(*args, **kwargs), result)

    if node.target is aten._to_copy.default:
        source: fx.Node = node.args[0]  # type: ignore[assignment]
        return Mapped(lambda index, reader: cast(reader.read(source, index), result))
    return Mapped(element)


def _only_torch_can(node: fx.Node, entry: Pointwise) -> bool:
    """Integers divided by what may be zero, where eager raises, and powers of them."""
    if node.target in (aten.pow.Scalar, aten.pow.Tensor_Tensor):
        return True
    by = None if entry.divides is None else node.args[entry.divides]
    return isinstance(by, fx.Node) or (isinstance(by, (int, float)) and by == 0)


_LAYOUT = frozenset({"memory_format", "layout", "device", "pin_memory", "non_blocking", "dtype"})


def _promoted(node: fx.Node) -> torch.dtype:
    values: list[Any] = [
        arg.meta["val"] if isinstance(arg, fx.Node) else arg
        for arg in node.args
        if isinstance(arg, (fx.Node, int, float))
    ]
    if len(values) == 1:
        dtype: torch.dtype = values[0].dtype
        return dtype
    return torch.result_type(values[0], values[1])


# New tensors


def _full(node: fx.Node, size: Any, value: Any, **options: Any) -> Mapped:
    return _filled(node, value)


def _like(node: fx.Node, source: Any, value: Any, **options: Any) -> Mapped:
    return _filled(node, value)


def _new_full(node: fx.Node, source: Any, size: Any, value: Any, **options: Any) -> Mapped:
    return _filled(node, value)


def _filled(node: fx.Node, value: Any) -> Mapped:
    _decline_if(not isinstance(value, (int, float)) or dtype_of(node).is_complex)
    made = constant(value, dtype_of(node))
    return Mapped(lambda index, reader: made)


def _scalar(node: fx.Node, value: Any, **options: Any) -> Mapped:
    return _filled(node, value)


def _zeros(node: fx.Node, *args: Any, **options: Any) -> Mapped:
    return _filled(node, 0)


def _ones(node: fx.Node, *args: Any, **options: Any) -> Mapped:
    return _filled(node, 1)


def _arange(node: fx.Node, *args: Any, **options: Any) -> Mapped:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    dtype = dtype_of(node)
    _decline_if(dtype.is_floating_point or not all(isinstance(n, int) for n in (start, step)))

    def element(index: Where, reader: Reader) -> Expression:
        return cast(reader.position(index[0] * step + start), dtype)

    return Mapped(element)


# Reductions


def _sum(node: fx.Node, x: fx.Node, dim: Any = None, keep: bool = False, **options: Any) -> Reduced:
    return _reduction(node, x, dim, "add", 0)


def _mean(
    node: fx.Node, x: fx.Node, dim: Any = None, keep: bool = False, **options: Any
) -> Reduced:
    shape = shape_of(x)
    count = product([shape[each] for each in _dims(shape, dim)])

    def finish(total: Expression, reader: Reader) -> Expression:
        return total / cast(reader.size(count), total.dtype)

    return _reduction(node, x, dim, "add", 0, finish)


def _extreme(operator: str) -> Callable[..., Reduced]:
    def reduction(node: fx.Node, x: fx.Node, dim: Any = (), keep: bool = False) -> Reduced:
        dtype, largest = dtype_of(node), operator == "minimum"
        if dtype.is_floating_point:
            start: float = math.inf if largest else -math.inf
        elif dtype == torch.bool:
            start = largest
        else:
            limits = torch.iinfo(dtype)
            start = limits.max if largest else limits.min
        return _reduction(node, x, dim, operator, start)

    return reduction


def _prod(node: fx.Node, x: fx.Node, dim: Any = None, keep: bool = False, **opt: Any) -> Reduced:
    return _reduction(node, x, None if dim is None else [dim], "mul", 1)


def _truth(operator: str, start: bool) -> Callable[..., Reduced]:
    def reduction(node: fx.Node, x: fx.Node, dim: Any = None, keep: bool = False) -> Reduced:
        _decline_if(dtype_of(node) != torch.bool)
        dims = [dim] if isinstance(dim, int) else dim
        return _reduction(node, x, dims, operator, start)

    return reduction


def _dims(shape: Sequence[Size], dim: Any) -> tuple[int, ...]:
    rank = len(shape)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    given = [dim] if isinstance(dim, int) else dim
    return tuple(sorted(each % rank for each in given)) if rank else ()


def _reduction(
    node: fx.Node,
    x: fx.Node,
    dim: Any,
    operator: str,
    start: float,
    finish: Callable[[Expression, Reader], Expression] | None = None,
) -> Reduced:
    result = dtype_of(node)
    kept_in = computed_in(result)

    def element(index: Where, reader: Reader) -> Expression:
        return cast(reader.read(x, index), kept_in)

    def finished(total: Expression, reader: Reader) -> Expression:
        return cast(finish(total, reader) if finish else total, result)

    shape = shape_of(x)
    begin = constant(start, kept_in)
    return Reduced(shape, _dims(shape, dim), x, operator, begin, element, finished)


# Elements by index


def _wrapped(value: Expression, size: Size, reader: Reader) -> Index:
    """An index as torch means it: a negative one counts from the end."""
    value = cast(value, torch.int64)
    made = where(value < 0, value + reader.size(size), value)
    return Index(((Gathered(made), 1),))


def _plain(value: Expression) -> Index:
    return Index(((Gathered(cast(value, torch.int64)), 1),))


def _is_index(node: Any) -> bool:
    return isinstance(node, fx.Node) and dtype_of(node) in (torch.int64, torch.int32)


@dataclass(frozen=True)
class _Indexing:
    """`x[indices]`: which dims of the result run over what."""

    x: tuple[Size, ...]
    indices: tuple[fx.Node | None, ...]
    common: tuple[Size, ...]
    at: int

    @classmethod
    def of(cls, x: fx.Node, indices: Sequence[Any]) -> _Indexing:
        given = [(place, each) for place, each in enumerate(indices) if each is not None]
        _decline_if(not given or not all(_is_index(each) for _, each in given))
        places = [place for place, _ in given]
        together = places == list(range(places[0], places[-1] + 1))
        common = torch.broadcast_shapes(*(each.meta["val"].shape for _, each in given))
        return cls(shape_of(x), tuple(indices), sizes(common), places[0] if together else 0)

    def place(self, index: Where, reader: Reader) -> Where:
        """The index into `x` for an index of the result."""
        run = index[self.at : self.at + len(self.common)]
        rest = iter((*index[: self.at], *index[self.at + len(self.common) :]))
        made: list[Index] = []
        for dim, size in enumerate(self.x):
            picked = self.indices[dim] if dim < len(self.indices) else None
            if picked is None:
                made.append(next(rest))
            else:
                value = reader.read(picked, broadcast(run, shape_of(picked)))
                made.append(_wrapped(value, size, reader))
        return tuple(made)

    def bounds(self) -> tuple[Bound, ...]:
        return tuple(
            Bound(node, size * -1, size)
            for node, size in zip(self.indices, self.x, strict=False)
            if node is not None
        )


def _index(node: fx.Node, x: fx.Node, indices: Sequence[Any]) -> Mapped:
    indexing = _Indexing.of(x, indices)
    return Mapped(
        lambda index, reader: reader.read(x, indexing.place(index, reader)), indexing.bounds()
    )


def _index_select(node: fx.Node, x: fx.Node, dim: int, picked: fx.Node) -> Mapped:
    _decline_if(x.meta["val"].dim() == 0 or picked.meta["val"].dim() == 0)
    dim %= x.meta["val"].dim()

    def element(index: Where, reader: Reader) -> Expression:
        place = _plain(reader.read(picked, (index[dim],)))
        return reader.read(x, (*index[:dim], place, *index[dim + 1 :]))

    return Mapped(element, (Bound(picked, 0, shape_of(x)[dim]),))


def _embedding(
    node: fx.Node, weight: fx.Node, picked: fx.Node, *options: Any, **named: Any
) -> Mapped:
    rank = picked.meta["val"].dim()

    def element(index: Where, reader: Reader) -> Expression:
        return reader.read(weight, (_plain(reader.read(picked, index[:rank])), index[rank]))

    return Mapped(element, (Bound(picked, 0, shape_of(weight)[0]),))


def _gather(node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, **options: Any) -> Mapped:
    _decline_if(x.meta["val"].dim() == 0 or picked.meta["val"].dim() == 0)
    dim %= x.meta["val"].dim()

    def element(index: Where, reader: Reader) -> Expression:
        place = _plain(reader.read(picked, index))
        return reader.read(x, (*index[:dim], place, *index[dim + 1 :]))

    return Mapped(element, (Bound(picked, 0, shape_of(x)[dim]),))


def _index_add(
    node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, source: fx.Node, *, alpha: Any = 1
) -> Scattered:
    _decline_if(source.meta["val"].dim() == 0 or picked.meta["val"].dim() == 0)
    dim %= x.meta["val"].dim()

    def place(index: Where, reader: Reader) -> Where:
        return (*index[:dim], _plain(reader.read(picked, (index[dim],))), *index[dim + 1 :])

    def element(index: Where, reader: Reader) -> Expression:
        value = reader.read(source, index)
        return value if alpha == 1 else value * alpha

    bounds = (Bound(picked, 0, shape_of(x)[dim]),)
    return _scattered(node, x, source, place, element, bounds)


def _scattered(
    node: fx.Node,
    x: fx.Node,
    source: fx.Node,
    place: Callable[[Where, Reader], Where],
    element: Element,
    bounds: tuple[Bound, ...],
    domain: tuple[Size, ...] | None = None,
) -> Scattered:
    # Half types would be rounded at every addition.
    _decline_if(dtype_of(node) in (torch.float16, torch.bfloat16, torch.bool))
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
    node: fx.Node, x: fx.Node, indices: Sequence[Any], values: fx.Node, accumulate: bool = False
) -> Scattered:
    _decline_if(not accumulate)
    indexing = _Indexing.of(x, indices)
    rest = [
        size
        for dim, size in enumerate(indexing.x)
        if dim >= len(indexing.indices) or indexing.indices[dim] is None
    ]
    domain = (*rest[: indexing.at], *indexing.common, *rest[indexing.at :])

    def element(index: Where, reader: Reader) -> Expression:
        return reader.read(values, broadcast(index, shape_of(values)))

    return _scattered(node, x, values, indexing.place, element, indexing.bounds(), tuple(domain))


def _scatter_add(
    node: fx.Node, x: fx.Node, dim: int, picked: fx.Node, source: fx.Node
) -> Scattered:
    _decline_if(x.meta["val"].dim() == 0 or picked.meta["val"].dim() == 0)
    dim %= x.meta["val"].dim()

    def place(index: Where, reader: Reader) -> Where:
        return (*index[:dim], _plain(reader.read(picked, index)), *index[dim + 1 :])

    return _scattered(
        node,
        x,
        source,
        place,
        lambda index, reader: reader.read(source, index),
        (Bound(picked, 0, shape_of(x)[dim]),),
        shape_of(picked),
    )


def _embedding_backward(
    node: fx.Node,
    cotangent: fx.Node,
    picked: fx.Node,
    count: Any,
    padding: Any,
    by_frequency: bool,
) -> Scattered:
    _decline_if(by_frequency or not isinstance(padding, int))
    rank, dtype = picked.meta["val"].dim(), dtype_of(node)
    _decline_if(dtype in (torch.float16, torch.bfloat16))

    def place(index: Where, reader: Reader) -> Where:
        return (_plain(reader.read(picked, index[:rank])), index[rank])

    def element(index: Where, reader: Reader) -> Expression:
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
        (Bound(picked, 0, size_of(_value(count))),),
    )


def _value(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, fx.Node) else arg


# Pieces put together


def _cat(node: fx.Node, tensors: Sequence[fx.Node], dim: int = 0) -> Mapped:
    # An empty tensor of one dimension may stand among others of any: eager skips it.
    parts = [t for t in tensors if not (t.meta["val"].dim() == 1 and shape_of(t)[0] == 0)]
    _decline_if(not parts or len(parts) > 8)
    dim %= node.meta["val"].dim()
    dtype = dtype_of(node)
    starts: list[Size] = [0]
    for part in parts:
        starts.append(starts[-1] + shape_of(part)[dim])

    def element(index: Where, reader: Reader) -> Expression:
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


def _pad(node: fx.Node, x: fx.Node, pad: Sequence[Any], value: Any = 0) -> Mapped:
    rank, shape, dtype = x.meta["val"].dim(), shape_of(x), dtype_of(node)
    _decline_if(not all(isinstance(each, int) for each in pad))
    before = [0] * rank
    touched = [False] * rank
    for place in range(len(pad) // 2):
        before[rank - 1 - place] = pad[2 * place]
        touched[rank - 1 - place] = bool(pad[2 * place] or pad[2 * place + 1])

    def element(index: Where, reader: Reader) -> Expression:
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


def _select_backward(node: fx.Node, x: fx.Node, shape: Any, dim: int, at: int) -> Mapped:
    dim %= node.meta["val"].dim()
    size = shape_of(node)[dim]
    _decline_if(not isinstance(at, int))
    place: Size = at if at >= 0 else at + size

    def element(index: Where, reader: Reader) -> Expression:
        inside = reader.position(index[dim]).equals(reader.size(place))
        value = reader.read(x, (*index[:dim], *index[dim + 1 :]))
        return where(inside, value, constant(0, value.dtype))

    return Mapped(element)


def _slice_backward(
    node: fx.Node, x: fx.Node, shape: Any, dim: int, start: Any, end: Any, step: Any
) -> Mapped:
    dim %= node.meta["val"].dim()
    size = shape_of(node)[dim]
    _decline_if(step != 1 or not isinstance(start, int) or not isinstance(size, int))
    assert isinstance(size, int)
    first = min(max(0, start if start >= 0 else start + size), size)

    def element(index: Where, reader: Reader) -> Expression:
        moved = index[dim] + -first
        here = reader.position(moved)
        value = reader.read(x, (*index[:dim], moved, *index[dim + 1 :]))
        conditions = [] if first == 0 else [here >= 0]
        if not same(shape_of(x)[dim] + first, size):
            conditions.append(here < reader.size(shape_of(x)[dim]))
        return _guarded(conditions, value, constant(0, value.dtype))

    return Mapped(element)


def _repeat(node: fx.Node, x: fx.Node, repeats: Sequence[Any]) -> Mapped:
    shape = shape_of(x)
    extra = len(repeats) - len(shape)

    def element(index: Where, reader: Reader) -> Expression:
        inner = index[extra:]
        wrapped = tuple(
            Index() if is_one(size) else each % size
            for each, size in zip(inner, shape, strict=True)
        )
        return reader.read(x, wrapped)

    return Mapped(element)


def _triangle(upper: bool) -> Callable[..., Mapped]:
    def rule(node: fx.Node, x: fx.Node, diagonal: int = 0) -> Mapped:
        def element(index: Where, reader: Reader) -> Expression:
            value = reader.read(x, index)
            offset = reader.position(index[-1] + index[-2] * -1)
            inside = offset >= diagonal if upper else offset <= diagonal
            return where(inside, value, constant(0, value.dtype))

        return Mapped(element)

    return rule


def _mse_loss_backward(
    node: fx.Node, cotangent: fx.Node, x: fx.Node, y: fx.Node, reduction: int
) -> Mapped:
    dtype = computed_in(dtype_of(node))
    _decline_if(not dtype.is_floating_point)
    count = product(shape_of(x))

    def element(index: Where, reader: Reader) -> Expression:
        g = cast(reader.read(cotangent, broadcast(index, shape_of(cotangent))), dtype)
        gap = cast(reader.read(x, index), dtype) - cast(reader.read(y, index), dtype)
        by = 2.0 if reduction != 1 else constant(2, dtype) / cast(reader.size(count), dtype)
        return cast(gap * by * g, dtype_of(node))

    return Mapped(element)


_RULES: dict[Any, Callable[..., Definition]] = {
    aten.all.default: _truth("and", True),
    aten.all.dim: _truth("and", True),
    aten.all.dims: _truth("and", True),
    aten.amax.default: _extreme("maximum"),
    aten.amin.default: _extreme("minimum"),
    aten.any.default: _truth("or", False),
    aten.any.dim: _truth("or", False),
    aten.any.dims: _truth("or", False),
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.full.default: _full,
    aten.full_like.default: _like,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten.index_select.default: _index_select,
    aten.max.default: _extreme("maximum"),
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.min.default: _extreme("minimum"),
    aten.mse_loss_backward.default: _mse_loss_backward,
    aten.new_full.default: _new_full,
    aten.new_ones.default: _ones,
    aten.new_zeros.default: _zeros,
    aten.ones.default: _ones,
    aten.ones_like.default: _ones,
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod,
    aten.repeat.default: _repeat,
    aten.scalar_tensor.default: _scalar,
    aten.scatter_add.default: _scatter_add,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.tril.default: _triangle(upper=False),
    aten.triu.default: _triangle(upper=True),
    aten.zeros.default: _zeros,
    aten.zeros_like.default: _zeros,
}

# What is made of nothing: it is computed anew wherever it is used.
CONSTANTS = frozenset(
    {
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.scalar_tensor.default,
        aten.zeros.default,
        aten.zeros_like.default,
    }
)
