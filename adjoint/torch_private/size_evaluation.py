"""Expressions over sizes, computed: in Python, as Python source, as nodes of a graph, or recorded.

Torch's interpreter of expressions, `sympy_interp`, calls a method for each operation; each of these
ways is a class with such methods.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch import fx
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from adjoint.open_types import OpArgument, TorchValue
from adjoint.torch_private.symbols import symbols_of


class _Arithmetic(PythonReferenceAnalysis):
    """Torch's evaluation of expressions, extended by piecewise expressions and fx proxies."""

    @staticmethod
    def int_truediv(a: object, b: object) -> object:
        return operator.truediv(a, b)

    @staticmethod
    def trunc_to_int(x: object, dtype: torch.dtype) -> object:
        return _called(torch.sym_int, x)

    @staticmethod
    def floor_to_int(x: object, dtype: torch.dtype) -> object:
        return _called(math.floor, x)

    @staticmethod
    def ceil_to_int(x: object, dtype: torch.dtype) -> object:
        return _called(math.ceil, x)

    @staticmethod
    def round_to_int(a: object, dtype: torch.dtype) -> object:
        return _called(round, a)

    @staticmethod
    def expr_cond_pair(value: object, holds: object) -> tuple[object, object]:
        return value, holds

    @staticmethod
    def piecewise(*cases: tuple[object, object]) -> object:
        # The last case is the default.
        chosen, _ = cases[-1]
        for value, holds in reversed(cases[:-1]):
            chosen = _chosen(holds, value, chosen)
        return chosen


def evaluate(expr: sympy.Basic, bindings: Mapping[sympy.Symbol, object]) -> TorchValue:
    """`expr` computed in Python, or traced if the bindings are fx proxies."""
    return sympy_interp(_Arithmetic, dict(bindings), expr)


class _Appending(fx.proxy.GraphAppendingTracer):
    """Appends the nodes of proxies to a graph, and lists them."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.made: list[fx.Node] = []

    def create_node(self, *args: OpArgument, **kwargs: OpArgument) -> fx.Node:
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


def _infix(sign: str) -> staticmethod[[object, object], str]:
    return staticmethod(lambda a, b: f"({a} {sign} {b})")


class _Source(_Arithmetic):
    """Expressions as Python source."""

    @staticmethod
    def constant(c: object, dtype: torch.dtype) -> object:
        return repr(PythonReferenceAnalysis.constant(c, dtype))

    @classmethod
    def sym_sum(cls, args: Sequence[str]) -> object:
        return f"({' + '.join(args)})"

    @staticmethod
    def minimum(a: object, b: object) -> object:
        return f"min({a}, {b})"

    @staticmethod
    def maximum(a: object, b: object) -> object:
        return f"max({a}, {b})"

    @staticmethod
    def not_(a: object) -> object:
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


class Recorded(Protocol):
    """An integer that records what is done with it."""

    def at_most(self, other: Recorded | int, /) -> object:
        """The smaller one."""
        ...

    def at_least(self, other: Recorded | int, /) -> object:
        """The larger one."""
        ...


class _Recorded(_Arithmetic):
    """Expressions of integers that record what is done with them."""

    @staticmethod
    def minimum(a: Recorded | int, b: Recorded) -> object:
        return b.at_most(a) if isinstance(a, int) else a.at_most(b)

    @staticmethod
    def maximum(a: Recorded | int, b: Recorded) -> object:
        return b.at_least(a) if isinstance(a, int) else a.at_least(b)

    @staticmethod
    def pow_by_natural(a: int, b: int) -> object:
        return math.prod([a] * b)


_RECORDED = (
    *(sympy.Integer, sympy.Symbol, sympy.Add, sympy.Mul, FloorDiv, CleanDiv, Mod, PythonMod),
    *(sympy.Mod, Max, Min, sympy.Max, sympy.Min),
)


def evaluate_recorded(expr: sympy.Basic, bindings: Mapping[sympy.Symbol, object]) -> TorchValue:
    """`expr` evaluated on objects that record additions, products, quotients, `at_most`, ..."""
    for part in sympy.preorder_traversal(expr):
        is_power = isinstance(part, sympy.Pow) and part.exp.is_Integer and part.exp > 0
        if not (is_power or isinstance(part, _RECORDED)):
            raise NotTraceable(str(part))
        if isinstance(part, sympy.Symbol) and part not in bindings:
            raise NotTraceable(str(part))
    return sympy_interp(_Recorded, dict(bindings), expr)


def _called(function: Callable[..., object], x: object) -> object:
    if isinstance(x, fx.Proxy):
        return x.tracer.create_proxy("call_function", function, (x,), {})
    return function(x)


def _chosen(condition: object, value: object, otherwise: object) -> object:
    given = (condition, value, otherwise)
    for each in given:
        if isinstance(each, fx.Proxy):
            return each.tracer.create_proxy("call_function", torch.sym_ite, given, {})
    return value if condition else otherwise


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
    holds: Callable[..., int | bool]


def value_of(expr: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> int:
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
