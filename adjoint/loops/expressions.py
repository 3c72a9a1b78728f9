"""Expressions of loop nests: a closed union of scalar values.

    Constant(2.0, float32)      a number
    Extent("s0")                a size or stride that the caller passes: int64
    Counter("i")                the counter of an enclosing loop: int64
    Name("sum", float32)        a name that an earlier statement assigned
    Load("x", offset, float32)  an element of a buffer; offsets count elements
    Apply("add", (a, b), dtype) an operator of `loops/operators.py`
    Cast(a, float16)            a conversion, as torch converts
    Guarded(c, a, b)            a if c else b, where a is computed only if c holds

Expressions are compared by identity: a value used twice is computed once.  Python's operators
build new expressions, of other expressions or of Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from typing_extensions import assert_never

from adjoint.loops.operators import OPERATORS


class _Arithmetic:
    """Python's operators; a Python number takes the dtype of the other operand."""

    __slots__ = ()

    def _with(self, operator: str, other: Operand, swapped: bool = False) -> Expression:
        left: Expression = self  # type: ignore[assignment]
        right = other if isinstance(other, _Arithmetic) else constant(other, left.dtype)
        return apply(operator, right, left) if swapped else apply(operator, left, right)

    def __add__(self, other: Operand) -> Expression:
        return self._with("add", other)

    def __radd__(self, other: Operand) -> Expression:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Operand) -> Expression:
        return self._with("sub", other)

    def __rsub__(self, other: Operand) -> Expression:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: Operand) -> Expression:
        return self._with("mul", other)

    def __rmul__(self, other: Operand) -> Expression:
        return self._with("mul", other, swapped=True)

    def __truediv__(self, other: Operand) -> Expression:
        return self._with("div", other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return self._with("div", other, swapped=True)

    def __neg__(self) -> Expression:
        return apply("neg", self)  # type: ignore[arg-type]

    def __lt__(self, other: Operand) -> Expression:
        return self._with("lt", other)

    def __le__(self, other: Operand) -> Expression:
        return self._with("le", other)

    def __gt__(self, other: Operand) -> Expression:
        return self._with("gt", other)

    def __ge__(self, other: Operand) -> Expression:
        return self._with("ge", other)

    def equals(self, other: Operand) -> Expression:
        return self._with("eq", other)

    def differs(self, other: Operand) -> Expression:
        return self._with("ne", other)


@dataclass(frozen=True, eq=False, slots=True)
class Constant(_Arithmetic):
    value: float | int | bool
    dtype: torch.dtype


class _Integer(_Arithmetic):
    __slots__ = ()

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64


@dataclass(frozen=True, eq=False, slots=True)
class Extent(_Integer):
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Counter(_Integer):
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Name(_Arithmetic):
    name: str
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Load(_Arithmetic):
    buffer: str
    offset: Expression
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Apply(_Arithmetic):
    operator: str
    args: tuple[Expression, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Cast(_Arithmetic):
    arg: Expression
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Guarded(_Arithmetic):
    condition: Expression
    value: Expression
    otherwise: Expression

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


Expression: TypeAlias = Constant | Extent | Counter | Name | Load | Apply | Cast | Guarded


Operand: TypeAlias = Expression | float | int | bool


def apply(operator: str, *args: Expression) -> Expression:
    """An operator applied to arguments of one dtype; only a condition may have another."""
    return Apply(operator, args, OPERATORS[operator].result(tuple(a.dtype for a in args)))


def cast(arg: Expression, dtype: torch.dtype) -> Expression:
    if arg.dtype == dtype:
        return arg
    if isinstance(arg, Constant):
        return constant(
            torch.tensor(arg.value, dtype=arg.dtype, device="cpu").to(dtype).item(), dtype
        )
    return Cast(arg, dtype)


def constant(value: float | int | bool, dtype: torch.dtype) -> Constant:
    """A number converted to `dtype`: floats are rounded to nearest, integers wrap."""
    if dtype == torch.bool:
        return Constant(bool(value), dtype)
    if dtype.is_floating_point:
        return Constant(torch.tensor(float(value), dtype=dtype, device="cpu").item(), dtype)
    return Constant(_wrapped(int(value), dtype), dtype)


def _wrapped(value: int, dtype: torch.dtype) -> int:
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (limits.max - limits.min + 1) + limits.min


def integer(value: int) -> Constant:
    return Constant(value, torch.int64)


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions that an expression is computed from."""
    match expression:
        case Constant() | Extent() | Counter() | Name():
            return ()
        case Load(_, offset, _):
            return (offset,)
        case Apply(_, args, _):
            return args
        case Cast(arg, _):
            return (arg,)
        case Guarded(condition, value, otherwise):
            return (condition, value, otherwise)
        case _:
            assert_never(expression)


def walk(expression: Expression, seen: set[int] | None = None) -> list[Expression]:
    """`expression` and everything it is computed from: children first, each once."""
    found: list[Expression] = []
    _collect(expression, set() if seen is None else seen, found)
    return found


def _collect(expression: Expression, seen: set[int], found: list[Expression]) -> None:
    if id(expression) in seen:
        return
    seen.add(id(expression))
    for child in children(expression):
        _collect(child, seen, found)
    found.append(expression)


def substituted(
    expression: Expression,
    found: Callable[[Expression], Expression | None],
    memo: dict[int, Expression],
) -> Expression:
    """`expression` with each part for which `found` returns another one replaced by that.

    `memo`: what was substituted before; values that are used twice stay shared.
    """
    known = memo.get(id(expression))
    if known is None:
        known = memo[id(expression)] = found(expression) or _with_children(
            expression, tuple(substituted(child, found, memo) for child in children(expression))
        )
    return known


def _with_children(expression: Expression, new: tuple[Expression, ...]) -> Expression:
    if all(one is other for one, other in zip(new, children(expression), strict=True)):
        return expression
    match expression:
        case Constant() | Extent() | Counter() | Name():
            return expression
        case Load():
            return replace(expression, offset=new[0])
        case Apply():
            return replace(expression, args=new)
        case Cast():
            return replace(expression, arg=new[0])
        case Guarded():
            return Guarded(*new)
        case _:
            assert_never(expression)
