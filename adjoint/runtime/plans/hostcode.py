"""Host code: the integer arithmetic of a call, as instructions over 64-bit words.

Sizes, the layout of temporaries in memory and the arguments of kernels are functions of the input
sizes and of a few addresses.  They are recorded once for a program and executed for each new set of
sizes, by a native interpreter (`interpreter.py`) or in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import sympy

from adjoint.loops.plan import Size
from adjoint.runtime.plans.layout import (
    MAX_TEMPORARY_BYTES,
    Lifetime,
    assign_offsets,
    events_of,
    placing_order,
)
from adjoint.torch_private import size_evaluation


class Op(IntEnum):
    """What an instruction does: `word[result] = word[a] op word[b]`."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    """Rounds down; the divisor must not be 0."""
    MOD = 4
    MIN = 5
    MAX = 6
    LAYOUT = 7
    """Assigns offsets; `a` is the first word of the table that `HostCode.layout` makes."""


Instruction: TypeAlias = tuple[Op, int, int, int]


class Undefined(ArithmeticError):
    """Host code divides by zero, or a result does not fit into a word."""


@dataclass(frozen=True)
class WordAddress:
    """The address of a word."""

    index: int


@dataclass(frozen=True)
class CallAddress:
    """An address that is known only in a call: an index into the call's table of addresses."""

    index: int


@dataclass(frozen=True, eq=False)
class Value:
    """An integer that host code computes, or a constant."""

    code: HostCode
    index: int
    known: int | None = None
    """Its value, if that is a constant."""

    def __add__(self, other: Value | int) -> Value:
        return self.code.compute(Op.ADD, self, other)

    def __sub__(self, other: Value | int) -> Value:
        return self.code.compute(Op.SUB, self, other)

    def __rsub__(self, other: int) -> Value:
        return self.code.compute(Op.SUB, other, self)

    def __mul__(self, other: Value | int) -> Value:
        return self.code.compute(Op.MUL, self, other)

    def __floordiv__(self, other: Value | int) -> Value:
        return self.code.compute(Op.DIV, self, other)

    def __rfloordiv__(self, other: int) -> Value:
        return self.code.compute(Op.DIV, other, self)

    def __mod__(self, other: Value | int) -> Value:
        return self.code.compute(Op.MOD, self, other)

    def __rmod__(self, other: int) -> Value:
        return self.code.compute(Op.MOD, other, self)

    def __neg__(self) -> Value:
        return 0 - self

    def at_least(self, other: Value | int) -> Value:
        return self.code.compute(Op.MAX, self, other)

    def at_most(self, other: Value | int) -> Value:
        return self.code.compute(Op.MIN, self, other)

    def rounded_up(self, multiple: Value | int) -> Value:
        return -(-self // multiple) * multiple

    __radd__ = __add__
    __rmul__ = __mul__


# The initial content of a word: a number, a value that instructions compute, or an address.
Word: TypeAlias = "int | Value | CallAddress | WordAddress"

_FOLDED: dict[Op, Callable[[int, int], int]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: lambda a, b: a // b,
    Op.MOD: lambda a, b: a % b,
    Op.MIN: min,
    Op.MAX: max,
}

# b such that `a op b` is `a`.
_NEUTRAL = {Op.ADD: 0, Op.SUB: 0, Op.MUL: 1, Op.DIV: 1}


# Words of working memory that a layout needs for each temporary: its aligned size, two orders, two
# sets of offsets, and the index, start and end of each block in the order of addresses.
WORKING_COLUMNS = 7


class HostCode:
    """Words and the instructions that compute some of them from others."""

    def __init__(self) -> None:
        self.words: list[int] = []
        """What each word is before the first instruction."""
        self.addresses: list[tuple[int, int]] = []
        """Words that are the address of another word."""
        self.call_addresses: list[tuple[int, int]] = []
        """Words that are the address at an index of a call's table."""
        self.instructions: list[Instruction] = []
        self.in_python: list[tuple[int, sympy.Expr]] = []
        """Words that no instruction can compute: sizes that Python evaluates."""
        self._constants: dict[int, Value] = {}
        self._computed: dict[tuple[Op, int, int], Value] = {}
        self._symbols: dict[sympy.Symbol, Value] = {}
        self._sizes: dict[sympy.Expr, Value] = {}

    def variable(self, symbol: sympy.Symbol | None = None) -> Value:
        """A word that is set from outside: that of a symbol in sizes, if given."""
        value = Value(self, self._word(0))
        if symbol is not None:
            self._symbols[symbol] = value
        return value

    def constant(self, number: int) -> Value:
        if number not in self._constants:
            self._constants[number] = Value(self, self._word(number), number)
        return self._constants[number]

    def size(self, size: Size) -> Value:
        """The value of a size."""
        if isinstance(size, int):
            return self.constant(size)
        if size not in self._sizes:
            self._sizes[size] = self._traced(sympy.sympify(size))
        return self._sizes[size]

    def sizes(self, values: Sequence[Size]) -> list[Value]:
        return [self.size(value) for value in values]

    def _traced(self, expr: sympy.Expr) -> Value:
        try:
            traced = size_evaluation.evaluate_recorded(expr, dict(self._symbols))
        except size_evaluation.NotTraceable:
            value = self.variable()
            self.in_python.append((value.index, expr))
            return value
        return traced if isinstance(traced, Value) else self.constant(int(traced))

    def compute(self, op: Op, a: Value | int, b: Value | int) -> Value:
        """`a op b`: computed now if both are constants, and once for the same operands."""
        a = a if isinstance(a, Value) else self.constant(a)
        b = b if isinstance(b, Value) else self.constant(b)
        if b.known is not None:
            if b.known == _NEUTRAL.get(op):
                return a
            if a.known is not None and not (b.known == 0 and op in (Op.DIV, Op.MOD)):
                return self.constant(_FOLDED[op](a.known, b.known))
        key = (op, a.index, b.index)
        if key not in self._computed:
            value = Value(self, self._word(0))
            self.instructions.append((op, value.index, *key[1:]))
            self._computed[key] = value
        return self._computed[key]

    def put(self, words: Sequence[Word]) -> WordAddress:
        """Consecutive words; the address of the first."""
        start = len(self.words)
        self.words += [0] * len(words)
        for index, word in enumerate(words, start):
            match word:
                case Value(known=None):
                    zero = self.constant(0)
                    self.instructions.append((Op.ADD, index, word.index, zero.index))
                case Value():
                    assert word.known is not None
                    self.words[index] = word.known
                case CallAddress(place):
                    self.call_addresses.append((index, place))
                case WordAddress(place):
                    self.addresses.append((index, place))
                case int():
                    self.words[index] = word
        return WordAddress(start)

    def layout(
        self, lifetimes: Sequence[tuple[int, int, Value]], alignment: int
    ) -> tuple[list[Value], Value]:
        """The offset of each temporary, given its first step, last step and bytes; and the total.

        The table: the count, the alignment and where the total goes; then for each temporary its
        first step, last step, the words of its size and of its offset; then the order in which to
        place them, the events by step, and working memory.
        """
        count = len(lifetimes)
        offsets = [Value(self, self._word(0)) for _ in lifetimes]
        total = Value(self, self._word(0))
        spans = [(first, last) for first, last, _ in lifetimes]
        start = len(self.words)
        self.words += [count, alignment, total.index]
        self.words += [first for first, _ in spans]
        self.words += [last for _, last in spans]
        self.words += [size.index for _, _, size in lifetimes]
        self.words += [offset.index for offset in offsets]
        self.words += placing_order(spans)
        self.words += events_of(spans)
        self.words += [0] * (WORKING_COLUMNS * count)
        self.instructions.append((Op.LAYOUT, total.index, start, start))
        return offsets, total

    def _word(self, value: int) -> int:
        self.words.append(value)
        return len(self.words) - 1


def execute(code: Sequence[Instruction], words: list[int] | memoryview[int]) -> None:
    """Execute instructions in Python."""
    for op, result, a, b in code:
        if op is Op.LAYOUT:
            _lay_out(words, a)
            continue
        if op in (Op.DIV, Op.MOD) and words[b] == 0:
            raise Undefined(f"{words[a]} is divided by zero")
        value = _FOLDED[op](words[a], words[b])
        if not -(2**63) <= value < 2**63:
            raise Undefined(f"{value} does not fit into 64 bits")
        words[result] = value


def _lay_out(words: list[int] | memoryview[int], table: int) -> None:
    count, alignment, total = words[table], words[table + 1], words[table + 2]

    def column(number: int) -> list[int]:
        start = table + 3 + number * count
        return list(words[start : start + count])

    lifetimes = {
        place: Lifetime(first, last, words[size])
        for place, (first, last, size) in enumerate(
            zip(column(0), column(1), column(2), strict=True)
        )
    }
    if any(each.size > MAX_TEMPORARY_BYTES for each in lifetimes.values()):
        raise Undefined("a temporary is larger than memory")
    offsets, words[total] = assign_offsets(lifetimes, alignment)
    for place, offset in enumerate(column(3)):
        words[offset] = offsets[place]
