"""Symbolic sizes: what a SymInt means, and how to compute it again in a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def expression(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """The expression over input sizes that `value` stands for."""
    expr: sympy.Basic = value.node.expr
    return value.node.shape_env.simplify(expr) if value.node.shape_env is not None else expr


def symbols_of(expr: sympy.Basic) -> list[sympy.Symbol]:
    """The symbols in `expr`, in a fixed order."""
    return sorted(expr.free_symbols, key=str)


def constant_value(expr: sympy.Basic) -> int | float | bool:
    """The number that `expr`, which has no symbols, is."""
    if expr.is_Boolean or expr in (sympy.true, sympy.false):
        return bool(expr)
    return int(expr) if expr.is_integer else float(expr)


def evaluate(expr: sympy.Basic, bindings: dict[sympy.Symbol, Any]) -> Any:
    """`expr` computed in Python (or traced, where the bindings are proxies)."""
    return sympy_interp(_Traceable, bindings, expr)


class _Traceable(PythonReferenceAnalysis):
    """Python's meaning of expressions, where torch's own does not accept proxies."""

    @staticmethod
    def piecewise(*pairs: Any) -> Any:
        result = pairs[-1][0]
        for value, condition in reversed(pairs[:-1]):
            result = _chosen(condition, value, result)
        return result


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


_ASSUMED: WeakKeyDictionary[ShapeEnv, list[sympy.Basic]] = WeakKeyDictionary()


@contextlib.contextmanager
def assumptions(shape_env: ShapeEnv | None) -> Iterator[list[sympy.Basic]]:
    """What torch takes for granted about sizes while the context lasts, or took before in another.

    Guards made after Dynamo has written its own are guarded by nobody: whoever runs what was built
    here must check them.
    """
    if shape_env is None:
        yield []
        return
    known = _ASSUMED.setdefault(shape_env, [])
    before, frozen = len(shape_env.guards), shape_env.frozen
    shape_env.frozen = False
    try:
        yield known
    finally:
        shape_env.frozen = frozen
        known += [guard.expr for guard in shape_env.guards[before:]]


def sizes_in(values: Iterable[tuple[Any, Any]]) -> dict[sympy.Symbol, int]:
    """The number that each symbol stands for, given pairs of a fake tensor and the real one."""
    found: dict[sympy.Symbol, int] = {}
    for fake, real in values:
        pairs = zip(fake.shape, real.shape, strict=False) if isinstance(fake, torch.Tensor) else ()
        for symbolic, size in (*pairs, (fake, real)):
            # As it was before anything was assumed: what is assumed to be 6 is a symbol here.
            written = symbolic.node._expr if isinstance(symbolic, torch.SymInt) else None
            if isinstance(written, sympy.Symbol):
                found[written] = size
    return found


def violated(expressions: Iterable[sympy.Basic], sizes: dict[sympy.Symbol, int]) -> str | None:
    """The first of `expressions` that does not hold for `sizes`; others it says nothing of."""
    for expr in expressions:
        if expr.free_symbols <= sizes.keys() and not evaluate(expr, dict(sizes)):
            return str(expr)
    return None


def declare_equal(one: Any, other: Any) -> None:
    """A size that is known only in the run is `other` there; other sizes are left alone."""
    if not (isinstance(other, int) and other == 1) and free_unbacked_symbols(one):
        torch._check(one == other)
