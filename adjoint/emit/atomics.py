"""Atomic updates: elements of memory that several threads update at the same time.

Additions that the GPU has an instruction for use it, four adjacent floats at a time where it can.
Everything else is a compare-and-swap loop.
"""

from __future__ import annotations

import torch

from adjoint.emit.arithmetic import Callees
from adjoint.emit.body import Body
from adjoint.emit.spelling import MEMORY, SIZES
from adjoint.loops.expressions import Apply, Constant, Counter, Expression
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.statements import Loop, Merge
from adjoint.target import Target

# Operators that an atomic instruction computes, by type in memory.
_ATOMIC = {
    ("add", "float"): "fadd",
    ("add", "double"): "fadd",
    ("add", "i32"): "add",
    ("add", "i64"): "add",
}

_ORDER = 'syncscope("device") monotonic'


# Adjacent floats that one vector instruction adds to memory.
_VECTOR_WIDTH = 4
_VECTOR_ADD = '"red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f"'


class AtomicBody(Body):
    def __init__(self, callees: Callees, target: Target) -> None:
        super().__init__(callees)
        self.target = target
        self.iterations: dict[str, str] = {}
        """The counters of the unrolled loops around this place, and the current iteration."""
        self.unrolled: Loop | None = None
        """The innermost unrolled loop around this place."""
        self.pending: dict[int, list[tuple[str, str]]] = {}
        """For each merge: addresses and values that the next vector instruction adds."""

    def atomic(self, merge: Merge, vectorize: bool = True) -> None:
        dtype = merge.value.dtype
        kind = MEMORY[dtype]
        address = self.element(merge.buffer, merge.offset, dtype)
        value = self.value(merge.value)
        instruction = _ATOMIC.get((merge.operator, kind))
        if vectorize and self.is_vectorizable(merge):
            self.vector_add(merge, address, value)
        elif instruction is None:
            self.compare_and_swap(merge, address, value)
        else:
            self.line(f"atomicrmw {instruction} ptr {address}, {kind} {value} {_ORDER}")

    def is_vectorizable(self, merge: Merge) -> bool:
        """Whether iterations of the unrolled loop add to adjacent, aligned elements."""
        loop = self.unrolled
        if not self.target.has_vector_atomics:
            return False
        if (merge.operator, merge.value.dtype) != ("add", torch.float32):
            return False
        if loop is None or not any(merge is statement for statement in loop.body):
            return False
        rest, number = self.without_known_part(merge.offset)
        begin = number - int(self.iterations[loop.counter])
        trips = int(loop.stop.value) if isinstance(loop.stop, Constant) else 1
        return (
            loop.counter not in counters_of(rest)
            and trips % _VECTOR_WIDTH == 0 == begin % _VECTOR_WIDTH
            and is_multiple(rest, _VECTOR_WIDTH)
        )

    def vector_add(self, merge: Merge, address: str, value: str) -> None:
        """Collect an addition; as soon as a vector is complete, one instruction adds it."""
        pending = self.pending.setdefault(id(merge), [])
        pending.append((address, value))
        if len(pending) < _VECTOR_WIDTH:
            return
        first = self.line(f"addrspacecast ptr {pending[0][0]} to ptr addrspace(1)")
        values = ", ".join(f"float {value}" for _, value in pending)
        self.lines.append(
            f"  call void asm sideeffect {_VECTOR_ADD}(ptr addrspace(1) {first}, {values})"
        )
        pending.clear()

    def compare_and_swap(self, merge: Merge, address: str, value: str) -> None:
        """Retry until no other thread has changed the element between load and store."""
        dtype = merge.value.dtype
        kind = MEMORY[dtype]
        bits = f"i{8 * SIZES[kind]}"
        label = self.label("swap")
        first = self.line(f"load {bits}, ptr {address}")
        self.lines += [
            f"  br label %{label}.from",
            f"{label}.from:",
            f"  br label %{label}",
            f"{label}:",
            f"  %{label}.old = phi {bits} [ {first}, %{label}.from ], [ %{label}.seen, %{label} ]",
        ]
        raw = (
            f"%{label}.old" if bits == kind else self.line(f"bitcast {bits} %{label}.old to {kind}")
        )
        old = self.from_memory(raw, dtype)
        new = self.to_memory(self.combined(merge.operator, old, value, dtype), dtype)
        new = new if bits == kind else self.line(f"bitcast {kind} {new} to {bits}")
        swap = f"cmpxchg ptr {address}, {bits} %{label}.old, {bits} {new} {_ORDER} monotonic"
        self.lines += [
            f"  %{label}.pair = {swap}",
            f"  %{label}.seen = extractvalue {{ {bits}, i1 }} %{label}.pair, 0",
            f"  %{label}.ok = extractvalue {{ {bits}, i1 }} %{label}.pair, 1",
            f"  br i1 %{label}.ok, label %{label}.end, label %{label}",
            f"{label}.end:",
        ]

    def without_known_part(self, offset: Expression) -> tuple[Expression, int]:
        """An offset as a sum: an expression, and what constants and unrolled counters add."""
        match offset:
            case Apply("add", (rest, Counter(name))) if self.named(name).isdigit():
                rest, number = self.without_known_part(rest)
                return rest, number + int(self.named(name))
            case Apply("add", (rest, Constant(value))):
                rest, number = self.without_known_part(rest)
                return rest, number + int(value)
            case _:
                return offset, 0


def counters_of(expression: Expression) -> set[str]:
    """The counters of the loops that a value varies with."""
    return {part.name for part in walk_expression(expression) if isinstance(part, Counter)}


def is_multiple(offset: Expression, of: int) -> bool:
    """Whether the offset is certainly a multiple."""
    match offset:
        case Constant(value):
            return int(value) % of == 0
        case Apply("mul", (left, right)):
            return is_multiple(left, of) or is_multiple(right, of)
        case Apply("add" | "sub", (left, right)):
            return is_multiple(left, of) and is_multiple(right, of)
        case _:
            return False
