"""Statements and expressions as lines of LLVM text, the same for every target.

Loops are scalar here: LLVM's own vectoriser widens them.  Floating-point arithmetic is exactly what
is written, but for sums into an accumulator, which may be taken in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from typing_extensions import assert_never

from adjoint.emit.math import definitions, symbol
from adjoint.emit.random import PHILOX
from adjoint.emit.spelling import (
    COMPARISONS,
    FLOATING,
    INTEGER,
    INTRINSICS,
    MEMORY,
    REGISTERS,
    SIZES,
    SUFFIX,
    UNSIGNED,
    literal,
    width,
)
from adjoint.loops.expressions import (
    Apply,
    Cast,
    Constant,
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
)
from adjoint.loops.operators import MATH
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
)

# Of a loop that goes no more than so often, and always as often.
SHORT = 8


@dataclass
class Wanted:
    """What the text of functions calls, and somebody has to define."""

    math: set[tuple[str, str]] = field(default_factory=set)
    intrinsics: set[str] = field(default_factory=set)
    shortcuts: set[str] = field(default_factory=set)
    """Functions that instructions of the machine make short work of."""
    draws: bool = False
    """Whether it draws random numbers."""


def defined(wanted: Wanted, philox: str = PHILOX) -> list[str]:
    """Declarations and definitions of all that is wanted; `philox`: what draws numbers."""
    math = definitions(sorted(wanted.math))
    drawing = [philox] if wanted.draws else []
    return [*(line for line in sorted(wanted.intrinsics) if line not in math), math, *drawing]


# On the branch back of a loop that is to be taken apart completely.
METADATA = """\
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.full"}
"""


class Body:
    """The lines of one function."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.count = 0
        # What is computed where it can be used again: one table for each block around this place.
        self.scopes: list[dict[int, str]] = [{}]
        self.names: list[dict[str, str]] = [{}]
        self.index_like: dict[int, bool] = {}
        self.arrays: dict[str, tuple[tuple[str, int], ...]] = {}
        """Accumulators of which there are several, one for each turn of loops."""

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def line(self, text: str) -> str:
        """`text` computed into a new register."""
        register = self.fresh()
        self.lines.append(f"  {register} = {text}")
        return register

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Loop(_, start, stop):
                self.loop_over(statement, self.value(start), self.value(stop))
            case Assign(name, value):
                self.names[-1][name] = self.value(value)
            case Accumulator(name, value, per):
                kind = REGISTERS[value.dtype]
                place = f"%var.{name}"
                if per:
                    if name not in self.arrays:
                        count = self.elements(per)
                        self.allocas.append(f"  {place} = alloca [{count} x {kind}]")
                    self.arrays[name] = per
                    place = self.variable(name, value.dtype)
                else:
                    self.allocas.append(f"  {place} = alloca {kind}")
                    self.names[-1][name] = place
                self.lines.append(f"  store {kind} {self.value(value)}, ptr {place}")
            case Update(name, operator, value):
                kind, place = REGISTERS[value.dtype], self.variable(name, value.dtype)
                old = self.line(f"load {kind}, ptr {place}")
                new = self.combined(operator, old, self.value(value), value.dtype)
                self.lines.append(f"  store {kind} {new}, ptr {place}")
            case Store(buffer, offset, value):
                self.store(
                    self.element(buffer, offset, value.dtype), self.value(value), value.dtype
                )
            case Merge(buffer, offset, operator, value):
                place = self.element(buffer, offset, value.dtype)
                old = self.loaded(place, value.dtype)
                new = self.combined(operator, old, self.value(value), value.dtype)
                self.store(place, new, value.dtype)
            case TeamMemory():
                self.team_memory(statement)
            case _:
                assert_never(statement)

    def loop_over(self, loop: Loop, start: str, stop: str, step: int = 1) -> None:
        self.count += 1
        label, counter = f"loop{self.count}", f"%c.{loop.counter}.{self.count}"
        before = f"{label}.before"
        self.lines += [
            f"  br label %{before}",
            f"{before}:",
            f"  %{label}.any = icmp slt i64 {start}, {stop}",
            f"  br i1 %{label}.any, label %{label}, label %{label}.end",
            f"{label}:",
            f"  {counter} = phi i64 [ {start}, %{before} ], [ %{label}.next, %{label}.latch ]",
        ]
        self.scopes.append({})
        self.names.append({loop.counter: counter})
        self.block(loop.body)
        self.names.pop()
        self.scopes.pop()
        times = loop.stop.value if isinstance(loop.stop, Constant) else SHORT + 1
        hint = ", !llvm.loop !0" if times <= SHORT and not holds_loop(loop) else ""
        self.lines += [
            f"  br label %{label}.latch",
            f"{label}.latch:",
            f"  %{label}.next = add nsw i64 {counter}, {step}",
            f"  %{label}.more = icmp slt i64 %{label}.next, {stop}",
            f"  br i1 %{label}.more, label %{label}, label %{label}.end{hint}",
            f"{label}.end:",
        ]

    def variable(self, name: str, dtype: torch.dtype) -> str:
        """Where an accumulator is kept."""
        if name not in self.arrays:
            return self.named(name)
        index = self.turn_of(self.arrays[name])
        return self.line(f"getelementptr {REGISTERS[dtype]}, ptr %var.{name}, i64 {index}")

    def elements(self, per: tuple[tuple[str, int], ...]) -> int:
        """How many accumulators there are, for each turn of some loops."""
        return math.prod(turns for _, turns in per)

    def turn_of(self, per: tuple[tuple[str, int], ...]) -> str:
        """The number of the turn at hand, of all turns of some loops."""
        made = "0"
        for counter, turns in per:
            whole = self.line(f"mul i64 {made}, {turns}")
            made = self.line(f"add i64 {whole}, {self.named(counter)}")
        return made

    def named(self, name: str) -> str:
        for names in reversed(self.names):
            if name in names:
                return names[name]
        raise KeyError(name)

    def value(self, expression: Expression) -> str:
        """The register or literal that holds the value."""
        if isinstance(expression, Constant):
            return literal(expression.value, expression.dtype)
        if isinstance(expression, Extent):
            return f"%e.{expression.name}"
        if isinstance(expression, Counter):
            return self.named(expression.name)
        if isinstance(expression, Name):
            if expression.name in self.arrays:
                place = self.variable(expression.name, expression.dtype)
                return self.line(f"load {REGISTERS[expression.dtype]}, ptr {place}")
            place = self.named(expression.name)
            if place.startswith("%var."):
                return self.line(f"load {REGISTERS[expression.dtype]}, ptr {place}")
            return place
        for scope in reversed(self.scopes):
            if id(expression) in scope:
                return scope[id(expression)]
        register = self.computed(expression)
        self.scopes[-1][id(expression)] = register
        return register

    def computed(self, expression: Load | Apply | Cast | Guarded) -> str:
        match expression:
            case Load(buffer, offset, dtype):
                place = self.element(buffer, offset, dtype)
                return self.loaded(place, dtype, self.hint_for(buffer))
            case Cast(arg, dtype):
                return self.converted(self.value(arg), arg.dtype, dtype)
            case Guarded():
                return self.guarded(expression)
            case Apply(operator, args, _):
                values = [self.value(arg) for arg in args]
                if args[-1].dtype == torch.int64 and operator in ("add", "sub", "mul"):
                    flag = " nsw" if self.is_index(expression) else ""
                    return self.line(f"{operator}{flag} i64 {values[0]}, {values[1]}")
                return self.applied(operator, values, args[-1].dtype)
            case _:
                assert_never(expression)

    def guarded(self, expression: Guarded) -> str:
        """A branch around what must not be computed."""
        kind = REGISTERS[expression.dtype]
        condition, otherwise = self.value(expression.condition), self.value(expression.otherwise)
        self.count += 1
        label = f"guard{self.count}"
        self.lines += [
            f"  br label %{label}.from",
            f"{label}.from:",
            f"  br i1 {condition}, label %{label}, label %{label}.end",
            f"{label}:",
        ]
        self.scopes.append({})
        value = self.value(expression.value)
        self.scopes.pop()
        self.lines += [
            f"  br label %{label}.to",
            f"{label}.to:",
            f"  br label %{label}.end",
            f"{label}.end:",
        ]
        return self.line(f"phi {kind} [ {otherwise}, %{label}.from ], [ {value}, %{label}.to ]")

    def is_index(self, expression: Expression) -> bool:
        """Made of counters and extents alone, so that it does not overflow."""
        known = self.index_like.get(id(expression))
        if known is None:
            match expression:
                case Counter() | Extent() | Constant():
                    known = True
                case Apply(_, args, dtype):
                    known = dtype == torch.int64 and all(map(self.is_index, args))
                case _:
                    known = False
            self.index_like[id(expression)] = known
        return known

    # Memory

    def element(self, buffer: str, offset: Expression, dtype: torch.dtype) -> str:
        kind = MEMORY[dtype]
        return self.line(
            f"getelementptr inbounds {kind}, ptr %b.{buffer}, i64 {self.value(offset)}"
        )

    def team_memory(self, memory: TeamMemory) -> None:
        """A buffer for the team: here, a thread."""
        kind = MEMORY[memory.dtype]
        self.allocas.append(f"  %b.{memory.name} = alloca [{memory.count} x {kind}]")

    def hint_for(self, buffer: str) -> str:
        """What is known of loads from a buffer."""
        return ""

    def loaded(self, place: str, dtype: torch.dtype, hint: str = "") -> str:
        kind = MEMORY[dtype]
        raw = self.line(f"load {kind}, ptr {place}, align {SIZES[kind]}{hint}")
        return self.from_memory(raw, dtype)

    def store(self, place: str, value: str, dtype: torch.dtype) -> None:
        kind = MEMORY[dtype]
        value = self.to_memory(value, dtype)
        self.lines.append(f"  store {kind} {value}, ptr {place}, align {SIZES[kind]}")

    def from_memory(self, raw: str, dtype: torch.dtype) -> str:
        """What lies in memory, as it is computed with."""
        if dtype == torch.bool:
            return self.line(f"icmp ne i8 {raw}, 0")
        if dtype == torch.bfloat16:
            wide = self.line(f"zext i16 {raw} to i32")
            return self.line(f"bitcast i32 {self.line(f'shl i32 {wide}, 16')} to float")
        return raw

    def to_memory(self, value: str, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.line(f"zext i1 {value} to i8")
        if dtype == torch.bfloat16:
            bits = self.line(f"bitcast float {value} to i32")
            return self.line(f"trunc i32 {self.line(f'lshr i32 {bits}, 16')} to i16")
        return value

    # Operators

    def combined(self, operator: str, old: str, new: str, dtype: torch.dtype) -> str:
        """A reduction's step: any order will do."""
        kind = REGISTERS[dtype]
        if dtype in (torch.float32, torch.float64):
            if operator in ("add", "mul"):
                return self.line(f"f{operator} reassoc {kind} {old}, {new}")
            if operator in ("minimum", "maximum"):
                return self.intrinsic(f"llvm.{operator}", kind, [old, new])
        return self.applied(operator, [old, new], dtype)

    def intrinsic(self, name: str, kind: str, values: Sequence[str]) -> str:
        full = f"@{name}.{SUFFIX[kind]}"
        self.wanted.intrinsics.add(f"declare {kind} {full}({', '.join([kind] * len(values))})")
        return self.line(f"call {kind} {full}({', '.join(f'{kind} {v}' for v in values)})")

    def applied(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
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
                self.wanted.draws = True
                return self.line(f"call i64 @philox({', '.join(f'i64 {v}' for v in values)})")
        raise NotImplementedError(f"{operator} of {dtype}")

    def within(self, index: str, size: str) -> str:
        """The index, if it is one; it ends here if not."""
        self.count += 1
        label = f"within{self.count}"
        inside = self.line(f"icmp ult i64 {index}, {size}")
        self.lines += [f"  br i1 {inside}, label %{label}, label %{label}.not", f"{label}.not:"]
        self.fail()
        self.lines += ["  unreachable", f"{label}:"]
        return index

    def fail(self) -> None:
        self.wanted.intrinsics.add("declare void @llvm.trap()")
        self.lines.append("  call void @llvm.trap()")

    def divided(self, operator: str, values: Sequence[str], kind: str, unsigned: bool) -> str:
        """Division by zero must not stop the machine: eager raises before, or so do we."""
        zero = self.line(f"icmp eq {kind} {values[1]}, 0")
        by = self.line(f"select i1 {zero}, {kind} 1, {kind} {values[1]}")
        if unsigned:
            name = "udiv" if operator in ("quotient", "floordiv") else "urem"
            return self.line(f"{name} {kind} {values[0]}, {by}")
        # The least integer has no opposite: divided by -1 it would stop the machine, too.
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
        """By any number of bits: LLVM itself shifts by less than there are."""
        left = operator == "shift_left"
        bits = width(kind)
        most = bits if left or unsigned else bits - 1
        within = self.line(f"icmp ult {kind} {values[1]}, {most}")
        by = self.line(f"select i1 {within}, {kind} {values[1]}, {kind} {min(most, bits - 1)}")
        how = "shl" if left else "lshr" if unsigned else "ashr"
        made = self.line(f"{how} {kind} {values[0]}, {by}")
        if not (left or unsigned):
            return made
        return self.line(f"select i1 {within}, {kind} {made}, {kind} 0")

    def floating(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        if operator in COMPARISONS:
            kind = REGISTERS[dtype]
            return self.line(f"fcmp {COMPARISONS[operator][0]} {kind} {values[0]}, {values[1]}")
        if operator == "select":
            kind = REGISTERS[dtype]
            return self.line(f"select i1 {values[0]}, {kind} {values[1]}, {kind} {values[2]}")
        if dtype in (torch.float16, torch.bfloat16):
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
            self.wanted.math.add((operator, SUFFIX[kind]))
            arguments = ", ".join(f"{kind} {value}" for value in values)
            return self.line(f"call {kind} @{symbol(operator, SUFFIX[kind])}({arguments})")
        raise NotImplementedError(f"{operator} of {dtype}")

    def converted(self, value: str, before: torch.dtype, after: torch.dtype) -> str:
        """As torch converts: NaN is true, floating-point numbers lose their fraction."""
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
                # By way of float32, as torch does; machines have no instruction for it.
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
        """A float rounded to the nearest bfloat16, ties to even; NaN stays one."""
        bits = self.line(f"bitcast float {value} to i32")
        last = self.line(f"and i32 {self.line(f'lshr i32 {bits}, 16')}, 1")
        up = self.line(f"add i32 {bits}, {self.line(f'add i32 {last}, 32767')}")
        kept = self.line(f"and i32 {up}, -65536")
        near = self.line(f"bitcast i32 {kept} to float")
        nan = self.line(f"fcmp uno float {value}, {value}")
        return self.line(f"select i1 {nan}, float 0x7FF8000000000000, float {near}")


def holds_loop(loop: Loop) -> bool:
    return any(isinstance(statement, Loop) for statement in loop.body)
