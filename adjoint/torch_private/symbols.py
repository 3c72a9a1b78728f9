"""Symbolic sizes: expressions of SymInts, guards, assumptions, and unbacked sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch import fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """The expression over input sizes that `value` stands for."""
    expr: sympy.Basic = value.node.expr
    shape_env = value.node.shape_env
    if shape_env is None:
        return expr
    expr = shape_env.simplify(expr)
    return expr.xreplace(_numbers(shape_env)) if expr.free_symbols else expr


# The number of guards read so far, and the result of `_numbers` for them.
_NUMBERS: WeakKeyDictionary[ShapeEnv, tuple[int, dict[sympy.Basic, sympy.Basic]]]
_NUMBERS = WeakKeyDictionary()


def _numbers(shape_env: ShapeEnv) -> dict[sympy.Basic, sympy.Basic]:
    """The symbols that a guard equates with a number, and that number.

    For general shapes torch keeps such a symbol in sizes even if a guard says that it is 0 or 1;
    without this table the axis would not be known to broadcast.
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


def same_number(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for all sizes of inputs; adds no guard."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    numbers = [expression(each) if isinstance(each, SYMBOLIC) else each for each in (one, other)]
    return bool(sympy.expand(numbers[0] - numbers[1]) == 0)


def same_numbers(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two shapes, or other lists of numbers, are equal in every call."""
    return len(one) == len(other) and all(map(same_number, one, other))


def floor_quotient(value: sympy.Expr, by: int) -> sympy.Expr:
    """`value // by`, as torch writes it."""
    quotient: sympy.Expr = FloorDiv(value, by)
    return quotient


def symbols_of(expr: sympy.Basic) -> list[sympy.Symbol]:
    """The symbols in `expr`, sorted by name."""
    return sorted(expr.free_symbols, key=str)


def constant_value(expr: sympy.Basic) -> int | float | bool:
    """The number that an expression without symbols stands for."""
    if expr.is_Boolean or expr in (sympy.true, sympy.false):
        return bool(expr)
    return int(expr) if expr.is_integer else float(expr)


class _Arithmetic(PythonReferenceAnalysis):
    """Torch's evaluation of expressions, extended by piecewise expressions and fx proxies."""

    @staticmethod
    def expr_cond_pair(value: Any, holds: Any) -> tuple[Any, Any]:
        return value, holds

    @staticmethod
    def piecewise(*cases: tuple[Any, Any]) -> Any:
        # The last case is the default.
        chosen, _ = cases[-1]
        for value, holds in reversed(cases[:-1]):
            chosen = _chosen(holds, value, chosen)
        return chosen


def evaluate(expr: sympy.Basic, bindings: dict[sympy.Symbol, Any]) -> Any:
    """`expr` computed in Python, or traced if the bindings are fx proxies."""
    return sympy_interp(_Arithmetic, bindings, expr)


class _Appending(fx.proxy.GraphAppendingTracer):
    """Appends the nodes of proxies to a graph, and lists them."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.made: list[fx.Node] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.made.append(node)
        return node


def as_nodes(
    expr: sympy.Basic, bindings: Mapping[sympy.Symbol, fx.Node], graph: fx.Graph
) -> tuple[fx.Node, list[fx.Node]]:
    """The node that computes `expr`, and the nodes that were added to the graph for that.

    Nodes are added at the insertion point of the graph, and have no metadata yet.
    """
    tracer = _Appending(graph)
    proxies = {symbol: fx.Proxy(node, tracer) for symbol, node in bindings.items()}
    value: fx.Node = evaluate(expr, proxies).node
    return value, tracer.made


def _infix(sign: str) -> Any:
    return staticmethod(lambda a, b: f"({a} {sign} {b})")


class _Source(_Arithmetic):
    """Expressions as Python source."""

    @staticmethod
    def constant(c: Any, dtype: torch.dtype) -> Any:
        return repr(PythonReferenceAnalysis.constant(c, dtype))

    @classmethod
    def sym_sum(cls, args: Sequence[Any]) -> Any:
        return f"({' + '.join(args)})"

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return f"min({a}, {b})"

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return f"max({a}, {b})"

    @staticmethod
    def not_(a: Any) -> Any:
        return f"(not {a})"

    add, mul, floordiv = _infix("+"), _infix("*"), _infix("//")
    mod = python_mod = _infix("%")
    eq, ne, lt, gt = _infix("=="), _infix("!="), _infix("<"), _infix(">")
    le, ge, and_, or_ = _infix("<="), _infix(">="), _infix("and"), _infix("or")


# Parts of expressions that `_Source` has, besides those of `_RECORDED`.
_COMPARED = (
    *(sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge),
    *(sympy.And, sympy.Or, sympy.Not, BooleanAtom),
)


class NotTraceable(Exception):
    """The expression has a part that recorded integers have no operation for."""


class _Recorded(_Arithmetic):
    """Expressions of integers that record what is done with them."""

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return b.at_most(a) if isinstance(a, int) else a.at_most(b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return b.at_least(a) if isinstance(a, int) else a.at_least(b)

    @staticmethod
    def pow_by_natural(a: Any, b: int) -> Any:
        value: Any = 1
        for _ in range(b):
            value = value * a
        return value


_RECORDED = (
    *(sympy.Integer, sympy.Symbol, sympy.Add, sympy.Mul, FloorDiv, CleanDiv, Mod, PythonMod),
    *(sympy.Mod, Max, Min, sympy.Max, sympy.Min),
)


def evaluate_recorded(expr: sympy.Basic, bindings: dict[sympy.Symbol, Any]) -> Any:
    """`expr` evaluated on objects that record additions, products, quotients, `at_most`, ..."""
    for part in sympy.preorder_traversal(expr):
        is_power = isinstance(part, sympy.Pow) and part.exp.is_Integer and part.exp > 0
        if not (is_power or isinstance(part, _RECORDED)):
            raise NotTraceable(str(part))
        if isinstance(part, sympy.Symbol) and part not in bindings:
            raise NotTraceable(str(part))
    return sympy_interp(_Recorded, bindings, expr)


def _chosen(condition: Any, value: Any, otherwise: Any) -> Any:
    given = (condition, value, otherwise)
    for each in given:
        if isinstance(each, fx.Proxy):
            return each.tracer.create_proxy("call_function", torch.sym_ite, given, {})
    return value if condition else otherwise


def size_symbols(tensor: torch.Tensor) -> Iterable[tuple[sympy.Symbol, Callable[..., Any], int]]:
    """Each size, stride or offset that is a symbol, and the op and axis by which it is read."""
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
    """Whether the size is an expression, neither a number nor a single symbol."""
    return isinstance(size, torch.SymInt) and not (
        (expr := expression(size)).is_Symbol or expr.is_number
    )


def solve(expr: sympy.Basic, symbol: sympy.Symbol, value: sympy.Symbol) -> sympy.Basic | None:
    """Solve `expr == value` for `symbol`; None unless `expr` is linear in it."""
    expr = sympy.expand(expr)
    factor = expr.coeff(symbol)
    rest = expr - factor * symbol
    if not factor.is_Integer or not factor or symbol in rest.free_symbols:
        return None
    return FloorDiv(value - rest, factor) if factor != 1 else value - rest


_ASSUMED: WeakKeyDictionary[ShapeEnv, list[sympy.Basic]] = WeakKeyDictionary()


@contextlib.contextmanager
def assumptions(shape_env: ShapeEnv | None) -> Iterator[list[sympy.Basic]]:
    """Collect the guards that torch adds in this context, after those of earlier contexts.

    Dynamo does not check guards added after it has generated its own, so whoever runs what was
    built in the context must check these assumptions.
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
    """Allow data-dependent (unbacked) sizes and numbers, which Dynamo refuses by default."""
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
    """The assumptions collected so far; the list grows with later ones."""
    return [] if shape_env is None else _ASSUMED.setdefault(shape_env, [])


def guards_of(shape_env: ShapeEnv) -> list[sympy.Basic]:
    """All guards on sizes, without duplicates."""
    return list(dict.fromkeys(guard.expr for guard in shape_env.guards))


def symbol_positions(values: Iterable[Any]) -> list[tuple[sympy.Symbol, int, int | None]]:
    """Each symbol, the index of the value that it is a size of, and the axis if a tensor."""
    found: list[tuple[sympy.Symbol, int, int | None]] = []
    for index, value in enumerate(values):
        axes = list(enumerate(value.shape)) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in axes:
            expr = unsimplified(size)
            if isinstance(expr, sympy.Symbol):
                found.append((expr, index, axis))
    return found


def stride_symbol_positions(values: Iterable[Any]) -> list[tuple[sympy.Symbol, int, int]]:
    """The same for strides: symbol, index of the tensor and axis."""
    return [
        (expr, index, axis)
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        for axis, stride in enumerate(value.stride())
        if isinstance(expr := unsimplified(stride), sympy.Symbol)
    ]


def unsimplified(size: Any) -> sympy.Basic | None:
    """The expression of a size without replacements by guards such as `s0 == 6`."""
    return size.node._expr if isinstance(size, torch.SymInt) else None


def fresh_symbols(shape_env: ShapeEnv, sizes: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, Any]:
    """For each symbol, a new one of `shape_env` with the given size as its hint; 0 stays a number.

    For empty tensors torch's symbolic expressions differ from the sizes it computes.
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
    """The first assumption that does not hold for `sizes`; those with other symbols are skipped."""
    for symbol, size in sizes.items():
        if symbol.is_Integer and int(symbol) != size:
            return f"a size is {symbol}"
    for expr in expressions:
        found = predicate(expr)
        values = [sizes.get(symbol) for symbol in found.symbols]
        if None not in values and not found.holds(*values):
            return str(expr)
    return None


@dataclasses.dataclass(frozen=True)
class Predicate:
    """An assumption about sizes, or a size, as a Python function of the symbols in it."""

    symbols: tuple[sympy.Symbol, ...]
    holds: Callable[..., Any]


def value_of(expr: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> Any:
    """The value of an expression for `sizes`."""
    found = predicate(expr)
    return found.holds(*[sizes[symbol] for symbol in found.symbols])


@functools.lru_cache(maxsize=4096)
def predicate(expr: sympy.Basic) -> Predicate:
    """`expr` compiled to a Python function, a hundred times as fast as evaluating it in sympy."""
    found = tuple(symbols_of(expr))
    parts = sympy.preorder_traversal(expr)
    if not all(isinstance(part, (*_RECORDED, *_COMPARED)) for part in parts):
        return Predicate(found, lambda *sizes: evaluate(expr, dict(zip(found, sizes, strict=True))))
    names = {symbol: f"s{place}" for place, symbol in enumerate(found)}
    text = f"lambda {', '.join(names.values())}: {sympy_interp(_Source, names, expr)}"
    return Predicate(found, eval(text))


def assert_equal_size(one: Any, other: Any) -> None:
    """Assert in the run that a data-dependent size equals `other`; other sizes are ignored."""
    if not (isinstance(other, int) and other == 1) and free_unbacked_symbols(one):
        torch._check(one == other)


def axes_of_unbacked_size(shape: Sequence[Any], where_one: Sequence[Any]) -> list[int]:
    """The axes whose size is data-dependent in `shape`, and 1 in `where_one`."""
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


_EXTREMA = frozenset(
    op
    for packet in (_aten.max, _aten.min, _aten.amax, _aten.amin, _aten.argmax, _aten.argmin)
    for name in ("default", "dim")
    if (op := getattr(packet, name, None)) is not None
) | {_aten.aminmax.default, _aten.median.dim, _aten.nanmedian.dim, _aten.mode.default}


class SizeSpecialized(Exception):
    """A program traced for a symbolic size is valid only for its value in this call.

    The frame is compiled again with the size as a number.
    """


def guard_open_decisions(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Guard on properties of sizes that `op` depends on, where general shapes leave them open."""
    if op in _SQUEEZES:
        _guard_squeezed_sizes(*args, **kwargs)
    elif op is _aten.slice.Tensor:
        _guard_slice(*args, **kwargs)
    elif op is _aten.select.int:
        _guard_selected(*args, **kwargs)
    elif op in _EXTREMA:
        _guard_extremum(*args, **kwargs)


def _guard_squeezed_sizes(x: torch.Tensor, dim: Any = None) -> None:
    """Guard on whether squeezed sizes are 1; for general shapes torch keeps the axes."""
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
    """Guard on where the slice starts and ends; torch would make its size data-dependent."""
    _guard_index(x, dim, start)
    _guard_index(x, dim, end)


def _guard_selected(x: torch.Tensor, dim: int, index: Any) -> None:
    """Guard on the existence of the selected element."""
    _guard_index(x, dim, index)
    size = x.shape[dim]
    if not free_unbacked_symbols((index, size)):
        _guard_at_least(size, index + 1 if index >= 0 else -index)


def _guard_extremum(x: torch.Tensor, dim: Any = None, *_: Any, **__: Any) -> None:
    """Guard on axes not being empty: the extremum of an empty axis is an error."""
    axes = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    for axis in axes if x.dim() else ():
        _guard_at_least(x.shape[axis], 1)


def _guard_at_least(size: Any, least: Any) -> None:
    """Guard on `size >= least`, and raise the lower bounds of its symbols to 1.

    Sympy takes symbols to be positive, so torch does not add a guard against size 0 by itself.
    """
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size) and size >= least:
        for symbol in expression(size).free_symbols:
            size.node.shape_env._update_var_to_range(symbol, ValueRanges(1, int_oo))


def _guard_index(x: torch.Tensor, dim: int, index: Any) -> None:
    """Guard on the sign of the index, and on whether it is within the axis."""
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
    """Each symbol once, with an input and the axis whose size it is (-1: the input itself)."""
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
    """Whether the size is 0 in the call being captured; if so, the graph is specialized on it."""
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size) and size.node.hint == 0:
        return int(size) == 0
    return type(size) is int and size == 0


def is_unbacked(symbol: sympy.Symbol) -> bool:
    """Whether the symbol stands for a data-dependent number, known only in the run."""
    return bool(symbol_is_type(symbol, SymT.UNBACKED_INT))


def is_unbacked_int(value: Any) -> bool:
    """Whether `value` is an integer that depends on data."""
    if not isinstance(value, torch.SymInt):
        return False
    return any(map(is_unbacked, symbols_of(expression(value))))


def has_new_symbols(view: Any, viewed: torch.Tensor) -> bool:
    """Whether `view` has data-dependent sizes or offsets that `viewed` does not have."""
    return bool(free_unbacked_symbols(view) - free_unbacked_symbols(viewed))


def unbacked_int(shape_env: ShapeEnv) -> torch.SymInt:
    """A new data-dependent integer."""
    return shape_env.create_unbacked_symint()


def unbacked_size(shape_env: ShapeEnv) -> torch.SymInt:
    """A new data-dependent integer that is not negative."""
    size = unbacked_int(shape_env)
    torch._check(size >= 0)
    return size


def hint(size: Any, otherwise: int = 1024) -> int:
    """The size in the call that was captured; `otherwise` if it is data-dependent."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else otherwise
    return int(size)
