"""Symbolic sizes: the expressions of SymInts, where symbols are found, and unbacked sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    free_unbacked_symbols,
)
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.symbol import SymT, symbol_is_type

from adjoint.open_types import Callee
from adjoint.torch_private import trees

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

Symbolic: TypeAlias = torch.SymInt | torch.SymFloat | torch.SymBool

# A size, or a number of the user's program.
Number: TypeAlias = "int | float | torch.SymInt | torch.SymFloat | torch.SymBool | sympy.Expr"

# The value of each size symbol.
Sizes: TypeAlias = dict[sympy.Symbol, int]


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


def same_number(one: Number, other: Number) -> bool:
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


def size_symbols(tensor: torch.Tensor) -> Iterable[tuple[sympy.Symbol, Callable[..., object], int]]:
    """Each size, stride or offset that is a symbol, and the op and axis by which it is read."""
    aten = torch.ops.aten
    queries: list[tuple[object, Callee, int]] = []
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


def is_compound(size: object) -> bool:
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


def symbol_positions(values: Iterable[object]) -> list[tuple[sympy.Symbol, int, int | None]]:
    """Each symbol, the index of the value that it is a size of, and the axis if a tensor."""
    found: list[tuple[sympy.Symbol, int, int | None]] = []
    for index, value in enumerate(values):
        axes = list(enumerate(value.shape)) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in axes:
            expr = unsimplified(size)
            if isinstance(expr, sympy.Symbol):
                found.append((expr, index, axis))
    return found


def stride_symbol_positions(values: Iterable[object]) -> list[tuple[sympy.Symbol, int, int]]:
    """Each symbol that is a stride, the index of the tensor, and the axis."""
    return [
        (expr, index, axis)
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        for axis, stride in enumerate(value.stride())
        if isinstance(expr := unsimplified(stride), sympy.Symbol)
    ]


def unsimplified(size: object) -> sympy.Basic | None:
    """The expression of a size without replacements by guards such as `s0 == 6`."""
    return size.node._expr if isinstance(size, torch.SymInt) else None


def fresh_symbols(
    shape_env: ShapeEnv, sizes: dict[sympy.Symbol, int]
) -> dict[sympy.Symbol, int | torch.SymInt]:
    """For each symbol, a new one of `shape_env` with the given size as its hint; 0 stays a number.

    For empty tensors torch's symbolic expressions differ from the sizes it computes.
    """
    from torch._dynamo.source import ConstantSource

    made: dict[sympy.Symbol, int | torch.SymInt] = {}
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


def assert_equal_size(one: object, other: object) -> None:
    """Assert in the run that a data-dependent size equals `other`; other sizes are ignored."""
    if not (isinstance(other, int) and other == 1) and free_unbacked_symbols(one):
        torch._check(one == other)


def axes_of_unbacked_size(shape: Sequence[object], where_one: Sequence[object]) -> list[int]:
    """The axes whose size is data-dependent in `shape`, and 1 in `where_one`."""
    if len(shape) != len(where_one):
        return []
    return [
        axis
        for axis, (size, one) in enumerate(zip(shape, where_one, strict=True))
        if isinstance(one, int) and one == 1 and free_unbacked_symbols(size)
    ]


def input_symbols(fakes: Sequence[object]) -> Iterator[tuple[sympy.Symbol, int, int]]:
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


def is_zero_in_capture(size: object) -> bool:
    """Whether the size is 0 in the call being captured; if so, the graph is specialized on it."""
    if isinstance(size, torch.SymInt) and not free_unbacked_symbols(size) and size.node.hint == 0:
        return int(size) == 0
    return type(size) is int and size == 0


def is_unbacked(symbol: sympy.Symbol) -> bool:
    """Whether the symbol stands for a data-dependent number, known only in the run."""
    return bool(symbol_is_type(symbol, SymT.UNBACKED_INT))


def is_unbacked_int(value: object) -> bool:
    """Whether `value` is an integer that depends on data."""
    if not isinstance(value, torch.SymInt):
        return False
    return any(map(is_unbacked, symbols_of(expression(value))))


def made_equal(dropped: object, kept: object) -> bool:
    """Let the data-dependent sizes of a result be those of an equal one; whether all sizes are.

    Each run of an operator such as `nonzero` has a symbol of its own for its size.
    """
    leaves = zip(trees.leaves(dropped), trees.leaves(kept), strict=True)
    return all(
        _made_equal(one, other)
        for pair in leaves
        for one, other in zip(*map(_numbers_of, pair), strict=True)
    )


def _numbers_of(value: object) -> Sequence[object]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def _made_equal(one: object, other: object) -> bool:
    if not isinstance(one, torch.SymInt) or not isinstance(other, torch.SymInt):
        return True
    dropped, kept = expression(one), expression(other)
    if dropped != kept and isinstance(dropped, sympy.Symbol) and is_unbacked(dropped):
        one.node.shape_env._set_replacement(dropped, kept, "results of equal calls are equal")
    return bool(expression(one) == expression(other))


def has_new_symbols(view: object, viewed: torch.Tensor) -> bool:
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


def hint(size: Number, otherwise: int = 1024) -> int:
    """The size in the call that was captured; `otherwise` if it is data-dependent."""
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else otherwise
    return int(size)
