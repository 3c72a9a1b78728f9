"""Statements and expressions as lines of LLVM IR, the same for every target.

Loops are scalar here: LLVM's loop vectorizer widens them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from typing_extensions import assert_never

from adjoint.emit.arithmetic import Arithmetic, Callees
from adjoint.emit.math import BRANCHING, branching_call
from adjoint.emit.spelling import MEMORY, REGISTERS, SIZES, SUFFIX, literal
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

# A loop with a constant trip count up to this is fully unrolled.
MAX_UNROLLED_TRIPS = 8

# Attached to the back edge of a loop that LLVM is to unroll.
METADATA = """\
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.full"}
"""


class Body(Arithmetic):
    """The lines of one function."""

    def __init__(self, callees: Callees) -> None:
        super().__init__(callees)
        self.allocas: list[str] = []
        # Registers of computed expressions, by identity: one table for each enclosing block.
        self.scopes: list[dict[int, str]] = [{}]
        # Registers of counters, assigned names and accumulators, likewise.
        self.names: list[dict[str, str]] = [{}]
        self.index_like: dict[int, bool] = {}
        self.arrays: dict[str, tuple[tuple[str, int], ...]] = {}
        """Accumulators with one element for each iteration of some loops, and those loops."""

    def floating(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        """Some functions branch on the size of their arguments."""
        if operator not in BRANCHING or dtype not in (torch.float32, torch.float64):
            return super().floating(operator, values, dtype)
        suffix = SUFFIX[REGISTERS[dtype]]
        self.callees.branching.add((operator, suffix))
        return self.line(branching_call(operator, suffix, values, self.callees.vector_bytes))

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Loop(_, start, stop):
                self.loop_over(statement, self.value(start), self.value(stop))
            case Assign(name, value):
                self.names[-1][name] = self.value(value)
            case Accumulator():
                self.accumulator(statement)
            case Update(name, operator, value):
                kind, address = REGISTERS[value.dtype], self.variable(name, value.dtype)
                old = self.line(f"load {kind}, ptr {address}")
                new = self.combined(operator, old, self.value(value), value.dtype)
                self.lines.append(f"  store {kind} {new}, ptr {address}")
            case Store(buffer, offset, value):
                address = self.element(buffer, offset, value.dtype)
                self.store(address, self.value(value), value.dtype)
            case Merge(buffer, offset, operator, value):
                address = self.element(buffer, offset, value.dtype)
                old = self.loaded(address, value.dtype)
                new = self.combined(operator, old, self.value(value), value.dtype)
                self.store(address, new, value.dtype)
            case TeamMemory():
                self.team_memory(statement)
            case _:
                assert_never(statement)

    def loop_over(self, loop: Loop, start: str, stop: str, step: int = 1) -> None:
        label = self.label("loop")
        counter = f"%c.{loop.counter}.{self.count}"
        before = f"{label}.before"
        self.lines += [
            f"  br label %{before}",
            f"{before}:",
            f"  %{label}.any = icmp slt i64 {start}, {stop}",
            f"  br i1 %{label}.any, label %{label}, label %{label}.end",
            f"{label}:",
            f"  {counter} = phi i64 [ {start}, %{before} ], [ %{label}.next, %{label}.latch ]",
        ]
        self.iteration(loop, counter)
        is_unrolled = is_short(loop) and not contains_loop(loop)
        hint = ", !llvm.loop !0" if is_unrolled else ""
        self.lines += [
            f"  br label %{label}.latch",
            f"{label}.latch:",
            f"  %{label}.next = add nsw i64 {counter}, {step}",
            f"  %{label}.more = icmp slt i64 %{label}.next, {stop}",
            f"  br i1 %{label}.more, label %{label}, label %{label}.end{hint}",
            f"{label}.end:",
        ]

    def iteration(self, loop: Loop, counter: str) -> None:
        """The body of a loop, for the iteration whose number is in the register `counter`."""
        self.scopes.append({})
        self.names.append({loop.counter: counter})
        self.block(loop.body)
        self.names.pop()
        self.scopes.pop()

    # Accumulators

    def accumulator(self, statement: Accumulator) -> None:
        name, value, per = statement.name, statement.value, statement.per
        kind, address = REGISTERS[value.dtype], f"%var.{name}"
        if per:
            if name not in self.arrays:
                self.allocas.append(f"  {address} = alloca [{self.elements(per)} x {kind}]")
            self.arrays[name] = per
            address = self.variable(name, value.dtype)
        else:
            self.allocas.append(f"  {address} = alloca {kind}")
            self.names[-1][name] = address
        self.lines.append(f"  store {kind} {self.value(value)}, ptr {address}")

    def variable(self, name: str, dtype: torch.dtype) -> str:
        """The address of an accumulator."""
        if name not in self.arrays:
            return self.named(name)
        index = self.iteration_number(self.arrays[name])
        return self.line(f"getelementptr {REGISTERS[dtype]}, ptr %var.{name}, i64 {index}")

    def elements(self, per: tuple[tuple[str, int], ...]) -> int:
        """The number of elements of an accumulator that has one for each iteration of some
        loops."""
        return math.prod(trips for _, trips in per)

    def iteration_number(self, per: tuple[tuple[str, int], ...]) -> str:
        """The number of the current iteration, counted through all of some nested loops."""
        number = "0"
        for counter, trips in per:
            whole = self.line(f"mul i64 {number}, {trips}")
            number = self.line(f"add i64 {whole}, {self.named(counter)}")
        return number

    # Expressions

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
            return self.name(expression)
        for scope in reversed(self.scopes):
            if id(expression) in scope:
                return scope[id(expression)]
        register = self.computed(expression)
        self.scopes[-1][id(expression)] = register
        return register

    def name(self, name: Name) -> str:
        """The register of an assigned name, or the current value of an accumulator."""
        is_array = name.name in self.arrays
        found = self.variable(name.name, name.dtype) if is_array else self.named(name.name)
        if is_array or found.startswith("%var."):
            return self.line(f"load {REGISTERS[name.dtype]}, ptr {found}")
        return found

    def computed(self, expression: Load | Apply | Cast | Guarded) -> str:
        match expression:
            case Load(buffer, offset, dtype):
                address = self.element(buffer, offset, dtype)
                return self.loaded(address, dtype, self.load_metadata(buffer))
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
        """A branch around a value that must not be computed where its condition is false."""
        kind = REGISTERS[expression.dtype]
        condition, otherwise = self.value(expression.condition), self.value(expression.otherwise)
        label = self.label("guard")
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
        """Whether it is computed from counters and extents alone, and so cannot overflow."""
        known = self.index_like.get(id(expression))
        if known is None:
            match expression:
                case Counter() | Extent() | Constant():
                    known = True
                case Apply(_, args, dtype):
                    known = dtype == torch.int64 and all(map(self.is_index, args))
                case Name() | Load() | Cast() | Guarded():
                    known = False
                case _:
                    assert_never(expression)
            self.index_like[id(expression)] = known
        return known

    # Memory

    def element(self, buffer: str, offset: Expression, dtype: torch.dtype) -> str:
        """The address of an element of a buffer."""
        kind = MEMORY[dtype]
        return self.line(
            f"getelementptr inbounds {kind}, ptr %b.{buffer}, i64 {self.value(offset)}"
        )

    def team_memory(self, memory: TeamMemory) -> None:
        """A buffer for the team, which here is a single thread."""
        kind = MEMORY[memory.dtype]
        self.allocas.append(f"  %b.{memory.name} = alloca [{memory.count} x {kind}]")

    def load_metadata(self, buffer: str) -> str:
        """Metadata for loads from a buffer."""
        return ""

    def loaded(self, address: str, dtype: torch.dtype, metadata: str = "") -> str:
        kind = MEMORY[dtype]
        raw = self.line(f"load {kind}, ptr {address}, align {SIZES[kind]}{metadata}")
        return self.from_memory(raw, dtype)

    def store(self, address: str, value: str, dtype: torch.dtype) -> None:
        kind = MEMORY[dtype]
        value = self.to_memory(value, dtype)
        self.lines.append(f"  store {kind} {value}, ptr {address}, align {SIZES[kind]}")

    def from_memory(self, raw: str, dtype: torch.dtype) -> str:
        """Convert an element from its representation in memory to the one that is computed with."""
        if dtype == torch.bool:
            return self.line(f"icmp ne i8 {raw}, 0")
        if dtype == torch.bfloat16:
            wide = self.line(f"zext i16 {raw} to i32")
            return self.line(f"bitcast i32 {self.line(f'shl i32 {wide}, 16')} to float")
        return raw

    def to_memory(self, value: str, dtype: torch.dtype) -> str:
        """The inverse of `from_memory`."""
        if dtype == torch.bool:
            return self.line(f"zext i1 {value} to i8")
        if dtype == torch.bfloat16:
            bits = self.line(f"bitcast float {value} to i32")
            return self.line(f"trunc i32 {self.line(f'lshr i32 {bits}, 16')} to i16")
        return value

    def function(self, signature: str) -> Iterator[str]:
        """The definition of the function whose lines these are."""
        yield f"define {signature} {{"
        yield "entry:"
        yield from self.allocas
        yield "  br label %start"
        yield "start:"
        yield from self.lines
        yield "  ret void"
        yield "}"


def is_short(loop: Loop) -> bool:
    """Whether the loop has a small constant trip count."""
    return isinstance(loop.stop, Constant) and loop.stop.value <= MAX_UNROLLED_TRIPS


def contains_loop(loop: Loop) -> bool:
    return any(isinstance(statement, Loop) for statement in loop.body)
