"""Symbolic sizes: what a SymInt means, and how to compute it again in a graph."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.symbol import SymT, symbol_is_type

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """The expression over input sizes that `value` stands for."""
    expr: sympy.Basic = value.node.expr
    shape_env = value.node.shape_env
    if shape_env is None:
        return expr
    expr = shape_env.simplify(expr)
    return expr.xreplace(_numbers(shape_env)) if expr.free_symbols else expr


# How many guards were read, and what they say.
_NUMBERS: WeakKeyDictionary[ShapeEnv, tuple[int, dict[sympy.Basic, sympy.Basic]]]
_NUMBERS = WeakKeyDictionary()


def _numbers(shape_env: ShapeEnv) -> dict[sympy.Basic, sympy.Basic]:
    """The symbols that a guard says are a number, and that number.

    In general shapes torch keeps symbols that are 0 or 1, though it has guarded that they are: a
    reader of such a size would not know that it broadcasts.
    """
    read, known = _NUMBERS.get(shape_env, (0, {}))
    if read != len(shape_env.guards):
        found = [guard.expr for guard in shape_env.guards]
        known = {
            expr.lhs: expr.rhs
            for expr in found
            if isinstance(expr, sympy.Eq) and expr.lhs.is_Symbol and expr.rhs.is_Integer
        }
        _NUMBERS[shape_env] = len(found), known
    return known


def symbols_of(expr: sympy.Basic) -> list[sympy.Symbol]:
    """The symbols in `expr`, in a fixed order."""
    return sorted(expr.free_symbols, key=str)


def constant_value(expr: sympy.Basic) -> int | float | bool:
    """The number that `expr`, which has no symbols, is."""
    if expr.is_Boolean or expr in (sympy.true, sympy.false):
        return bool(expr)
    return int(expr) if expr.is_integer else float(expr)


class _Arithmetic(PythonReferenceAnalysis):
    """What operators of expressions mean.  torch 2.11 knows no cases, and none takes proxies."""

    @staticmethod
    def expr_cond_pair(value: Any, holds: Any) -> tuple[Any, Any]:
        return value, holds

    @staticmethod
    def piecewise(*cases: tuple[Any, Any]) -> Any:
        # The last case is what remains when no other holds.
        chosen, _ = cases[-1]
        for value, holds in reversed(cases[:-1]):
            chosen = _chosen(holds, value, chosen)
        return chosen


def evaluate(expr: sympy.Basic, bindings: dict[sympy.Symbol, Any]) -> Any:
    """`expr` computed in Python (or traced, where the bindings are proxies)."""
    return sympy_interp(_Arithmetic, bindings, expr)


def _chosen(condition: Any, value: Any, otherwise: Any) -> Any:
    given = (condition, value, otherwise)
    for each in given:
        if isinstance(each, fx.Proxy):
            return each.tracer.create_proxy("call_function", torch.sym_ite, given, {})
    return value if condition else otherwise


def size_symbols(tensor: torch.Tensor) -> Iterable[tuple[sympy.Symbol, Callable[..., Any], int]]:
    """Each plain symbol among the sizes, strides and offset of `tensor`, and the query for it."""
    aten = torch.ops.aten
    queries: list[tuple[Any, Any, int]] = []
    for axis, size in enumerate(tensor.shape):
        queries.append((size, aten.sym_size.int, axis))
    if tensor.layout is torch.strided:
        for axis, stride in enumerate(tensor.stride()):
            queries.append((stride, aten.sym_stride.int, axis))
        queries.append((tensor.storage_offset(), aten.sym_storage_offset.default, -1))
    for value, query, axis in queries:
        if isinstance(value, torch.SymInt):
            expr = expression(value)
            if isinstance(expr, sympy.Symbol):
                yield expr, query, axis


def is_compound(size: Any) -> bool:
    """A size that is neither a number nor a symbol: an expression over symbols."""
    return isinstance(size, torch.SymInt) and not (
        (expr := expression(size)).is_Symbol or expr.is_number
    )


def solve(expr: sympy.Basic, symbol: sympy.Symbol, value: sympy.Symbol) -> sympy.Basic | None:
    """What `symbol` is where `expr` is `value`; None unless it is a sum of it and of others."""
    expr = sympy.expand(expr)
    factor = expr.coeff(symbol)
    rest = expr - factor * symbol
    if not factor.is_Integer or not factor or symbol in rest.free_symbols:
        return None
    return FloorDiv(value - rest, factor) if factor != 1 else value - rest


_ASSUMED: WeakKeyDictionary[ShapeEnv, list[sympy.Basic]] = WeakKeyDictionary()


@contextlib.contextmanager
def assumptions(shape_env: ShapeEnv | None) -> Iterator[list[sympy.Basic]]:
    """What torch takes for granted about sizes while the context lasts, or took before in another.

    Guards made after Dynamo has written its own are guarded by nobody: whoever runs what was built
    here must check them.
    """
    known = assumed(shape_env)
    if shape_env is None:
        yield known
        return
    before, frozen = len(shape_env.guards), shape_env.frozen
    shape_env.frozen = False
    try:
        yield known
    finally:
        shape_env.frozen = frozen
        found = [guard.expr for guard in shape_env.guards[before:]]
        known += [expr for expr in found if expr not in known]


@contextlib.contextmanager
def allow_data_dependent_sizes(shape_env: ShapeEnv | None) -> Iterator[None]:
    """Sizes and numbers may depend on data while the context lasts.

    Dynamo lets none be, unless it is told to: it would rather not compile what has them.
    """
    if shape_env is None:
        yield
        return
    settings = shape_env.settings
    shape_env.settings = dataclasses.replace(
        settings, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True
    )
    try:
        yield
    finally:
        shape_env.settings = settings


def assumed(shape_env: ShapeEnv | None) -> list[sympy.Basic]:
    """What has been taken for granted so far; the list grows as more is."""
    return [] if shape_env is None else _ASSUMED.setdefault(shape_env, [])


def guards_of(shape_env: ShapeEnv) -> list[sympy.Basic]:
    """What was decided about sizes, in any context."""
    return list(dict.fromkeys(guard.expr for guard in shape_env.guards))


def symbol_positions(values: Iterable[Any]) -> list[tuple[sympy.Symbol, int, int | None]]:
    """Where the symbols in `values` are seen: which value, and which of its axes if a tensor."""
    found: list[tuple[sympy.Symbol, int, int | None]] = []
    for place, value in enumerate(values):
        axes = list(enumerate(value.shape)) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in axes:
            expr = unsimplified(size)
            if isinstance(expr, sympy.Symbol):
                found.append((expr, place, axis))
    return found


def stride_symbol_positions(values: Iterable[Any]) -> list[tuple[sympy.Symbol, int, int]]:
    """The same for strides: which value, and which of its axes."""
    return [
        (expr, place, axis)
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        for axis, stride in enumerate(value.stride())
        if isinstance(expr := unsimplified(stride), sympy.Symbol)
    ]


def unsimplified(size: Any) -> sympy.Basic | None:
    """A size as it was before anything was assumed: what is assumed to be 6 is a symbol here."""
    return size.node._expr if isinstance(size, torch.SymInt) else None


def fresh_symbols(shape_env: ShapeEnv, sizes: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, Any]:
    """For each symbol, one of `shape_env` that stands for the same size, of which nothing is known
    but that it is the one given here; 0 is itself.

    Torch computes strides and extents of what is empty otherwise than its own expressions for them.
    """
    from torch._dynamo.source import ConstantSource

    made: dict[sympy.Symbol, Any] = {}
    for symbol, size in sizes.items():
        if size == 0 or symbol.is_Integer:
            made[symbol] = size
            continue
        source = ConstantSource(f"anew_{symbol}")
        expr = shape_env.create_symbol(
            size, source, DimDynamic.DYNAMIC, positive=bool(symbol.is_positive) or None
        )
        made[symbol] = shape_env.create_symintnode(expr, hint=size, source=source)
    return made


def first_violated(
    expressions: Iterable[sympy.Basic], sizes: dict[sympy.Symbol, int]
) -> str | None:
    """The first of `expressions` that does not hold for `sizes`; others it says nothing of."""
    for symbol, size in sizes.items():
        if symbol.is_Integer and int(symbol) != size:
            return f"a size is {symbol}"
    for expr in expressions:
        if expr.free_symbols <= sizes.keys() and not evaluate(expr, dict(sizes)):
            return str(expr)
    return None


def assert_equal_size(one: Any, other: Any) -> None:
    """A size that is known only in the run is `other` there; other sizes are left alone."""
    if not (isinstance(other, int) and other == 1) and free_unbacked_symbols(one):
        torch._check(one == other)


def axes_of_unbacked_size(shape: Sequence[Any], where_one: Sequence[Any]) -> list[int]:
    """The axes whose size in `shape` is known only in the run, and 1 in `where_one`."""
    if len(shape) != len(where_one):
        return []
    return [
        axis
        for axis, (size, one) in enumerate(zip(shape, where_one, strict=True))
        if isinstance(one, int) and one == 1 and free_unbacked_symbols(size)
    ]


_aten = torch.ops.aten
_SQUEEZES = frozenset(
    op
    for packet in (_aten.squeeze, _aten.squeeze_)
    for op in (packet.default, packet.dim, packet.dims)
)


class SizeSpecialized(Exception):
    """Dynamo has traced a program for a size in general that is for this size alone.

    It does so anew, with the size as a number.
    """


def guard_open_decisions(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Guard what the result of `op` depends on and torch, in general shapes, leaves open."""
    if op in _SQUEEZES:
        _guard_squeezed_sizes(*args, **kwargs)
    elif op is _aten.slice.Tensor:
        _guard_slice(*args, **kwargs)
    elif op is _aten.select.int:
        _guard_index(*args, **kwargs)


def _guard_squeezed_sizes(x: torch.Tensor, dim: Any = None) -> None:
    """Whether the symbolic sizes that are dropped if they are 1 are 1; torch would keep them."""
    axes = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    sizes: list[Any] = [x.shape[axis] for axis in axes if x.dim()]
    for size in sizes:
        if not isinstance(size, torch.SymInt) or free_unbacked_symbols(size):
            continue
        if bool(size == 1) and not size.node.expr.is_Integer:
            raise SizeSpecialized(f"the size {size} is 1, and is squeezed")


def _guard_slice(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> None:
    """Where the slice starts and ends; torch would make its size one that depends on data."""
    _guard_index(x, dim, start)
    _guard_index(x, dim, end)


def _guard_index(x: torch.Tensor, dim: int, index: Any) -> None:
    """From which end of the axis the index counts, and whether it is on the axis."""
    size = x.shape[dim]
    if not isinstance(index, torch.SymInt) or free_unbacked_symbols((index, size)):
        return
    if statically_known_true(index >= 0) or statically_known_true(index < 0):
        return
    if index >= 0:
        bool(index <= size)
    else:
        bool(index >= -size)


def input_symbols(fakes: Sequence[Any]) -> Iterator[tuple[sympy.Symbol, int, int]]:
    """Each symbol, with the input and the dimension whose size it is; -1: the input itself."""
    seen: set[sympy.Symbol] = set()
    for place, fake in enumerate(fakes):
        values = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
        for dim, value in enumerate(values):
            if isinstance(value, torch.SymInt):
                expr = expression(value)
                if isinstance(expr, sympy.Symbol) and expr not in seen:
                    seen.add(expr)
                    yield expr, place, dim if isinstance(fake, torch.Tensor) else -1


def is_zero_in_capture(size: Any) -> bool:
    """The size is 0 in the call that is captured; the graph is for that size alone then."""
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size) and size.node.hint == 0:
        return int(size) == 0
    return type(size) is int and size == 0


def is_unbacked(symbol: sympy.Symbol) -> bool:
    """The symbol stands for a number that is known only when the program runs."""
    return bool(symbol_is_type(symbol, SymT.UNBACKED_INT))


def is_unbacked_int(value: Any) -> bool:
    """`value` is an integer that depends on what the program computes."""
    if not isinstance(value, torch.SymInt):
        return False
    return any(map(is_unbacked, symbols_of(expression(value))))


def has_new_symbols(view: Any, viewed: torch.Tensor) -> bool:
    """A size or offset of `view` depends on data, and nothing of `viewed` says it."""
    return bool(free_unbacked_symbols(view) - free_unbacked_symbols(viewed))


def unbacked_int(shape_env: ShapeEnv) -> torch.SymInt:
    """An integer that is known only when the program runs."""
    return shape_env.create_unbacked_symint()


def unbacked_size(shape_env: ShapeEnv) -> torch.SymInt:
    """The same, of a tensor's size."""
    size = unbacked_int(shape_env)
    torch._check(size >= 0)
    return size


def hint(size: Any, otherwise: int = 1024) -> int:
    """The size at hand when the graph was made; a middling one where that is not known."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else otherwise
    return int(size)
