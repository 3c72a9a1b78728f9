"""Operators and conversions of one dtype to another, as lines of LLVM IR.

Floating-point arithmetic is strict: only the steps of a reduction may be reassociated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from adjoint.dtypes import HALVES
from adjoint.emit.math import (
    bodies_of,
    branching_definitions,
    conditions,
    definitions,
    symbol,
)
from adjoint.emit.random import PHILOX
from adjoint.emit.spelling import (
    COMPARISONS,
    FLOATING,
    INTEGER,
    INTRINSICS,
    REGISTERS,
    SIZES,
    SUFFIX,
    UNSIGNED,
    literal,
    width,
)
from adjoint.loops.operators import MATH


@dataclass
class Callees:
    """Functions that the emitted lines call, and that the module has to declare or define."""

    math: set[tuple[str, str]] = field(default_factory=set)
    """Functions of the math library, each with the suffix of its type."""
    intrinsics: set[str] = field(default_factory=set)
    """Declarations of LLVM intrinsics."""
    shortcuts: set[str] = field(default_factory=set)
    """Functions of `emit/shortcuts.py`."""
    branching: set[tuple[str, str]] = field(default_factory=set)
    """Functions of the math library that branch, in the same way."""
    vector_bytes: int = 16
    """The bytes of a vector register, for which loops are vectorized; 0 if there is none."""
    attributes: str = ""
    """The attributes of all functions."""
    philox: bool = False

    def defined(self, philox: str = PHILOX) -> list[str]:
        """Declarations and definitions; `philox` is the text of the random number generator."""
        math = definitions(self.math | bodies_of(self.branching)) + conditions(self.branching)
        if self.vector_bytes:
            math += branching_definitions(self.branching, self.vector_bytes, self.attributes)
        declared = [line for line in sorted(self.intrinsics) if line not in math]
        return [*declared, math, *([philox] if self.philox else [])]


class Arithmetic:
    """Appends instructions to the lines of one function; each gets a new register."""

    def __init__(self, callees: Callees) -> None:
        self.callees = callees
        self.lines: list[str] = []
        self.count = 0

    def line(self, text: str) -> str:
        """`text` computed into a new register, which is returned."""
        self.count += 1
        register = f"%v{self.count}"
        self.lines.append(f"  {register} = {text}")
        return register

    def label(self, name: str) -> str:
        """A label that no other block of the function has."""
        self.count += 1
        return f"{name}{self.count}"

    @contextmanager
    def only_if(self, condition: str, label: str) -> Iterator[None]:
        """A block that runs where `condition` holds."""
        self.lines += [f"  br i1 {condition}, label %{label}, label %{label}.end", f"{label}:"]
        yield
        self.lines += [f"  br label %{label}.end", f"{label}.end:"]

    def combined(self, operator: str, old: str, new: str, dtype: torch.dtype) -> str:
        """One step of a reduction, which may be reassociated."""
        kind = REGISTERS[dtype]
        if dtype in (torch.float32, torch.float64):
            if operator in ("add", "mul"):
                return self.line(f"f{operator} reassoc {kind} {old}, {new}")
            if operator in ("minimum", "maximum"):
                return self.intrinsic(f"llvm.{operator}", kind, [old, new])
        return self.applied(operator, [old, new], dtype)

    def intrinsic(self, name: str, kind: str, values: Sequence[str]) -> str:
        full = f"@{name}.{SUFFIX[kind]}"
        self.callees.intrinsics.add(f"declare {kind} {full}({', '.join([kind] * len(values))})")
        return self.line(f"call {kind} {full}({', '.join(f'{kind} {v}' for v in values)})")

    def applied(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        """An operator of `loops/operators.py` applied to arguments of type `dtype`."""
        if dtype.is_floating_point:
            return self.floating(operator, values, dtype)
        kind, unsigned = REGISTERS[dtype], dtype in UNSIGNED
        match operator:
            case "select":
                return self.line(f"select i1 {values[0]}, {kind} {values[1]}, {kind} {values[2]}")
            case _ if operator in COMPARISONS:
                how = COMPARISONS[operator][2 if unsigned else 1]
                return self.line(f"icmp {how} {kind} {values[0]}, {values[1]}")
            case "add" if dtype == torch.bool:
                return self.line(f"or i1 {values[0]}, {values[1]}")
            case "mul" if dtype == torch.bool:
                return self.line(f"and i1 {values[0]}, {values[1]}")
            case _ if operator in INTEGER:
                return self.line(f"{operator} {kind} {values[0]}, {values[1]}")
            case "shift_left" | "shift_right":
                return self.shifted(operator, values, kind, unsigned)
            case "neg":
                return self.line(f"sub {kind} 0, {values[0]}")
            case "not":
                return self.line(f"xor {kind} {values[0]}, -1")
            case "abs":
                if unsigned:
                    return values[0]
                negative = self.line(f"icmp slt {kind} {values[0]}, 0")
                opposite = self.line(f"sub {kind} 0, {values[0]}")
                return self.line(f"select i1 {negative}, {kind} {opposite}, {kind} {values[0]}")
            case "minimum" | "maximum":
                order = "lt" if operator == "minimum" else "gt"
                how = f"{'u' if unsigned else 's'}{order}"
                first = self.line(f"icmp {how} {kind} {values[0]}, {values[1]}")
                return self.line(f"select i1 {first}, {kind} {values[0]}, {kind} {values[1]}")
            case "quotient" | "floordiv" | "mod" | "fmod":
                return self.divided(operator, values, kind, unsigned)
            case "floor" | "ceil" | "trunc" | "round":
                return values[0]
            case "within":
                return self.within(values[0], values[1])
            case "philox" if dtype == torch.int64:
                self.callees.philox = True
                return self.line(f"call i64 @philox({', '.join(f'i64 {v}' for v in values)})")
        raise NotImplementedError(f"{operator} of {dtype}")

    def within(self, index: str, size: str) -> str:
        """The index, if it is in range(size); otherwise the kernel fails."""
        label = self.label("within")
        inside = self.line(f"icmp ult i64 {index}, {size}")
        self.lines += [f"  br i1 {inside}, label %{label}, label %{label}.not", f"{label}.not:"]
        self.fail()
        self.lines += ["  unreachable", f"{label}:"]
        return index

    def fail(self) -> None:
        """Abort the process."""
        self.callees.intrinsics.add("declare void @llvm.trap()")
        self.lines.append("  call void @llvm.trap()")

    def divided(self, operator: str, values: Sequence[str], kind: str, unsigned: bool) -> str:
        """Integer division.

        Division by zero would trap.  The error is raised elsewhere, so the result here may be any
        value.
        """
        zero = self.line(f"icmp eq {kind} {values[1]}, 0")
        by = self.line(f"select i1 {zero}, {kind} 1, {kind} {values[1]}")
        if unsigned:
            name = "udiv" if operator in ("quotient", "floordiv") else "urem"
            return self.line(f"{name} {kind} {values[0]}, {by}")
        # The most negative integer divided by -1 overflows, which traps as well.
        minus = self.line(f"icmp eq {kind} {by}, -1")
        safe = self.line(f"select i1 {minus}, {kind} 1, {kind} {by}")
        rest = self.line(f"srem {kind} {values[0]}, {safe}")
        if operator == "fmod":
            return rest
        whole = self.line(f"sdiv {kind} {values[0]}, {safe}")
        opposite = self.line(f"sub {kind} 0, {values[0]}")
        quotient = self.line(f"select i1 {minus}, {kind} {opposite}, {kind} {whole}")
        if operator == "quotient":
            return quotient
        uneven = self.line(f"icmp ne {kind} {rest}, 0")
        signs = self.line(f"xor {kind} {rest}, {by}")
        apart = self.line(f"icmp slt {kind} {signs}, 0")
        below = self.line(f"and i1 {uneven}, {apart}")
        if operator == "floordiv":
            lower = self.line(f"sub {kind} {quotient}, 1")
            return self.line(f"select i1 {below}, {kind} {lower}, {kind} {quotient}")
        higher = self.line(f"add {kind} {rest}, {by}")
        return self.line(f"select i1 {below}, {kind} {higher}, {kind} {rest}")

    def shifted(self, operator: str, values: Sequence[str], kind: str, unsigned: bool) -> str:
        """A shift by any number of bits; LLVM's own is undefined from the width of the type on."""
        left = operator == "shift_left"
        bits = width(kind)
        most = bits if left or unsigned else bits - 1
        within = self.line(f"icmp ult {kind} {values[1]}, {most}")
        by = self.line(f"select i1 {within}, {kind} {values[1]}, {kind} {min(most, bits - 1)}")
        how = "shl" if left else "lshr" if unsigned else "ashr"
        shifted = self.line(f"{how} {kind} {values[0]}, {by}")
        if not (left or unsigned):
            return shifted
        return self.line(f"select i1 {within}, {kind} {shifted}, {kind} 0")

    def floating(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        """Half types are computed in float32 and rounded."""
        if operator in COMPARISONS:
            kind = REGISTERS[dtype]
            return self.line(f"fcmp {COMPARISONS[operator][0]} {kind} {values[0]}, {values[1]}")
        if operator == "select":
            kind = REGISTERS[dtype]
            return self.line(f"select i1 {values[0]}, {kind} {values[1]}, {kind} {values[2]}")
        if dtype in HALVES:
            wide = [self.converted(value, dtype, torch.float32) for value in values]
            return self.converted(
                self.floating(operator, wide, torch.float32), torch.float32, dtype
            )
        kind = REGISTERS[dtype]
        if operator in FLOATING:
            return self.line(f"{FLOATING[operator]} {kind} {values[0]}, {values[1]}")
        if operator == "neg":
            return self.line(f"fneg {kind} {values[0]}")
        if operator == "abs":
            return self.intrinsic("llvm.fabs", kind, values)
        if operator in ("minimum", "maximum"):
            how = "olt" if operator == "minimum" else "ogt"
            first = self.line(f"fcmp {how} {kind} {values[0]}, {values[1]}")
            better = self.line(f"select i1 {first}, {kind} {values[0]}, {kind} {values[1]}")
            nan = self.line(f"fcmp uno {kind} {values[0]}, {values[0]}")
            return self.line(f"select i1 {nan}, {kind} {values[0]}, {kind} {better}")
        if operator in INTRINSICS:
            return self.intrinsic(f"llvm.{INTRINSICS[operator]}", kind, values)
        if operator in MATH:
            self.callees.math.add((operator, SUFFIX[kind]))
            arguments = ", ".join(f"{kind} {value}" for value in values)
            return self.line(f"call {kind} @{symbol(operator, SUFFIX[kind])}({arguments})")
        raise NotImplementedError(f"{operator} of {dtype}")

    def converted(self, value: str, before: torch.dtype, after: torch.dtype) -> str:
        """As torch converts: NaN is true, and integers are floats rounded towards zero."""
        if before == after:
            return value
        here, there = REGISTERS[before], REGISTERS[after]
        if after == torch.bool:
            how = "fcmp une" if before.is_floating_point else "icmp ne"
            return self.line(f"{how} {here} {value}, {literal(0, before)}")
        if before.is_floating_point and after.is_floating_point:
            if before == torch.bfloat16 and after == torch.float32:
                return value
            if after == torch.bfloat16:
                return self.rounded(self.converted(value, before, torch.float32))
            if (before, after) == (torch.float64, torch.float16):
                # Through float32, as torch does: few machines convert directly.
                value, here = self.converted(value, before, torch.float32), "float"
            how = "fpext" if SIZES[here] < SIZES[there] else "fptrunc"
            return self.line(f"{how} {here} {value} to {there}")
        if before.is_floating_point:
            if after == torch.int64:
                return self.line(f"fptosi {here} {value} to i64")
            if after == torch.int32:
                return self.line(f"fptosi {here} {value} to i32")
            wide = self.line(f"fptosi {here} {value} to i32")
            return self.line(f"trunc i32 {wide} to {there}")
        if after == torch.bfloat16:
            return self.rounded(self.converted(value, before, torch.float32))
        unsigned = before in UNSIGNED
        if after.is_floating_point:
            return self.line(f"{'u' if unsigned else 's'}itofp {here} {value} to {there}")
        narrow, wide_enough = width(here), width(there)
        if narrow == wide_enough:
            return value
        how = "trunc" if narrow > wide_enough else "zext" if unsigned else "sext"
        return self.line(f"{how} {here} {value} to {there}")

    def rounded(self, value: str) -> str:
        """A float rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
        bits = self.line(f"bitcast float {value} to i32")
        last = self.line(f"and i32 {self.line(f'lshr i32 {bits}, 16')}, 1")
        up = self.line(f"add i32 {bits}, {self.line(f'add i32 {last}, 32767')}")
        kept = self.line(f"and i32 {up}, -65536")
        near = self.line(f"bitcast i32 {kept} to float")
        nan = self.line(f"fcmp uno float {value}, {value}")
        return self.line(f"select i1 {nan}, float 0x7FF8000000000000, float {near}")
