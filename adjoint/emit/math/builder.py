"""Writes one scalar function as LLVM IR text, from Python that reads as mathematics.

`Value` overloads the operators: `x * y + 1.0` appends two instructions. A Python number stands for
the constant of the other operand's type. Nothing here is target specific: plain instructions and
the intrinsics every LLVM target lowers. There are no branches, so that a loop around an inlined
function is vectorized.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Real:
    """A floating type to compute in, with polynomials of the accuracy that it needs."""

    name: str
    type: str
    integer: str
    suffix: str
    mantissa_bits: int
    bias: int

    @property
    def bits(self) -> int:
        return int(self.integer[1:])

    @property
    def magic(self) -> float:
        """Adding it rounds a number to an integer, which is then the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def epsilon(self) -> float:
        return 2.0**-self.mantissa_bits


F32 = Real("f32", "float", "i32", "f32", 23, 127)
F64 = Real("f64", "double", "i64", "f64", 52, 1023)
# Computes in double a result that is rounded to float: short polynomials, no error compensation.
WIDE = Real("wide", "double", "i64", "f64", 52, 1023)

INFINITY = float("inf")
NAN = float("nan")


def constant(number: float | int, type_: str) -> str:
    """A number as an operand; floats in hexadecimal, since LLVM takes no inexact decimals."""
    if type_ in ("float", "double"):
        if type_ == "float":
            (number,) = struct.unpack("<f", struct.pack("<f", number))
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    return str(int(number))


@dataclass(frozen=True)
class Value:
    """The result of an instruction. Operators append to the function it belongs to."""

    text: str
    type: str
    builder: Builder

    @property
    def is_real(self) -> bool:
        return self.type in ("float", "double")

    def _binary(self, real: str | None, integer: str, other: Operand, flip: bool = False) -> Value:
        op = real if self.is_real else integer
        assert op is not None, f"{integer} needs integers, not {self.type}"
        left, right = self.text, self.builder.operand(other, self.type)
        if flip:
            left, right = right, left
        return self.builder.emit(f"{op} {self.type} {left}, {right}", self.type)

    def _compare(self, real: str, integer: str, other: Operand) -> Value:
        op = f"fcmp {real}" if self.is_real else f"icmp {integer}"
        right = self.builder.operand(other, self.type)
        return self.builder.emit(f"{op} {self.type} {self.text}, {right}", "i1")

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other)

    def __radd__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other, flip=True)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other, flip=True)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other)

    def __rmul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other, flip=True)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "sdiv", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "sdiv", other, flip=True)

    def __and__(self, other: Operand) -> Value:
        return self._binary(None, "and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary(None, "or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary(None, "xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary(None, "shl", other)

    def __rshift__(self, other: Operand) -> Value:
        """Arithmetic: the sign is kept."""
        return self._binary(None, "ashr", other)

    def __neg__(self) -> Value:
        if self.is_real:
            return self.builder.emit(f"fneg {self.type} {self.text}", self.type)
        return 0 - self

    def __invert__(self) -> Value:
        return self ^ (1 if self.type == "i1" else -1)

    # Comparisons of reals are ordered: false if either side is NaN.
    def __lt__(self, other: Operand) -> Value:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare("oge", "sge", other)

    def equals(self, other: Operand) -> Value:
        return self._compare("oeq", "eq", other)

    def is_nan(self) -> Value:
        return self.builder.emit(f"fcmp uno {self.type} {self.text}, {self.text}", "i1")


Operand: TypeAlias = Value | float | int


@dataclass
class Builder:
    """The lines of one function."""

    real: Real
    lines: list[str] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)

    def emit(self, instruction: str, type_: str) -> Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return Value(name, type_, self)

    def operand(self, value: Operand, type_: str) -> str:
        if isinstance(value, Value):
            assert value.type == type_, f"{value.type} given where {type_} is needed"
            return value.text
        return constant(value, type_)

    def constant(self, number: float) -> Value:
        return Value(constant(number, self.real.type), self.real.type, self)

    def whole(self, number: int) -> Value:
        return Value(str(number), self.real.integer, self)

    def intrinsic(self, name: str, first: Value, *rest: Operand) -> Value:
        type_ = first.type
        suffix = {"float": "f32", "double": "f64"}[type_]
        operands = ", ".join(f"{type_} {self.operand(v, type_)}" for v in (first, *rest))
        return self.emit(f"call {type_} @llvm.{name}.{suffix}({operands})", type_)

    def normalized(self, x: Value) -> tuple[Value, Value]:
        """A positive number times 2**(mantissa_bits + 1) if it is subnormal; and whether it is."""
        is_subnormal = x < self.real.smallest_normal
        scaled = x * 2.0 ** (self.real.mantissa_bits + 1)
        return self.select(is_subnormal, scaled, x), is_subnormal

    def fma(self, x: Value, y: Operand, z: Operand) -> Value:
        """x * y + z, rounded once."""
        return self.intrinsic("fma", x, y, z)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def abs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def trunc(self, x: Value) -> Value:
        return self.intrinsic("trunc", x)

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        typed = yes if isinstance(yes, Value) else no
        assert isinstance(typed, Value), "a select needs one operand that is not a constant"
        t = typed.type
        yes_text, no_text = self.operand(yes, t), self.operand(no, t)
        return self.emit(f"select i1 {condition.text}, {t} {yes_text}, {t} {no_text}", t)

    def at_least(self, x: Value, bound: Operand) -> Value:
        """The larger; NaN stays NaN."""
        return self.select(x < bound, bound, x)

    def at_most(self, x: Value, bound: Operand) -> Value:
        """The smaller; NaN stays NaN."""
        return self.select(x > bound, bound, x)

    def bits(self, x: Value) -> Value:
        integer = {"float": "i32", "double": "i64"}[x.type]
        return self.emit(f"bitcast {x.type} {x.text} to {integer}", integer)

    def from_bits(self, i: Value) -> Value:
        type_ = {"i32": "float", "i64": "double"}[i.type]
        return self.emit(f"bitcast {i.type} {i.text} to {type_}", type_)

    def to_real(self, i: Value) -> Value:
        """An integer's value."""
        return self.emit(f"sitofp {i.type} {i.text} to {self.real.type}", self.real.type)

    def widen(self, x: Value) -> Value:
        return self.emit(f"fpext {x.type} {x.text} to double", "double")

    def narrow(self, x: Value) -> Value:
        return self.emit(f"fptrunc {x.type} {x.text} to float", "float")

    def look_up(self, table: str, rows: Sequence[float], index: Value) -> Value:
        """An element of a constant table of doubles. The index must be within it."""
        size = len(rows)
        body = ", ".join(f"double {constant(row, 'double')}" for row in rows)
        self.tables[table] = f"@{table} = internal unnamed_addr constant [{size} x double] [{body}]"
        address = self.emit(
            f"getelementptr inbounds [{size} x double], ptr @{table}, i64 0, "
            f"{index.type} {index.text}",
            "ptr",
        )
        return self.emit(f"load double, ptr {address.text}, align 8", "double")

    # Building blocks of the functions.

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """c[0] + c[1] x + ...: Horner's scheme, a long one in two chains of even and odd powers."""
        if len(coefficients) <= 8:
            return self._horner(x, coefficients)
        square = x * x
        odd = self._horner(square, coefficients[1::2])
        return self.fma(odd, x, self._horner(square, coefficients[::2]))

    def _horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        *rest, before_last, last = coefficients
        result = self.fma(x, last, before_last)
        for coefficient in reversed(rest):
            result = self.fma(result, x, coefficient)
        return result

    def nearest(self, x: Value, factor: float = 1.0, plus: int = 0) -> tuple[Value, Value]:
        """n, the integer nearest to factor * x, as a real, and an integer that ends in n + plus.

        A number so large that its last bit is 1 is added and subtracted: no conversion, and no
        poison for NaN. A shift or a mask removes what is above the low bits of the second.
        """
        magic = self.real.magic + plus
        shifted = x + magic if factor == 1.0 else self.fma(x, factor, magic)
        return shifted - magic, self.bits(shifted)

    def power_of_two(self, n: Value) -> Value:
        """2.0**n where that is a normal number."""
        return self.power_of_field(n + self.real.bias)

    def power_of_field(self, n: Value) -> Value:
        """2.0**(n - bias), of the low bits of n."""
        return self.from_bits(n << self.real.mantissa_bits)

    def scale(self, x: Value, n: Value) -> Value:
        """x * 2.0**(n - 2 bias) for x near 1: rounded once, also where the power is not normal."""
        half = n >> 1
        return x * self.power_of_field(half) * self.power_of_field(n - half)

    def ratio_to_sum(self, x: Value, y: Value, z: float) -> Value:
        """x / (y + z). In float one residual corrects the rounding of both sum and quotient."""
        total = y + z
        if self.real is not F32:
            return x / total
        lost = y - (total - z)
        inverse = 1.0 / total
        quotient = x * inverse
        residual = self.fma(quotient, -lost, self.fma(quotient, -total, x))
        return self.fma(residual, inverse, quotient)
