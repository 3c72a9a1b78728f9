"""Elements of memory that several threads come to.

The machine adds a number to an element by one instruction, newer ones to several neighbours at a
time.  What there is no instruction for is tried until nobody came between.
"""

from __future__ import annotations

import torch

from adjoint.emit.body import Body, Wanted
from adjoint.emit.spelling import MEMORY, SIZES
from adjoint.loops.expressions import Apply, Constant, Counter, Expression
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.statements import Loop, Merge

# Atomic instructions that the machine has.
_ATOMIC = {
    ("add", "float"): "fadd",
    ("add", "double"): "fadd",
    ("add", "i32"): "add",
    ("add", "i64"): "add",
}

_ORDER = 'syncscope("device") monotonic'


# Neighbours that the machine adds to memory by one instruction.
_WIDE = 4
_ADD = '"red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f"'


class AtomicBody(Body):
    def __init__(self, wanted: Wanted, wide: bool) -> None:
        """`wide`: the machine adds several neighbours to memory at a time."""
        super().__init__(wanted)
        self.wide = wide
        self.turns: dict[str, str] = {}
        """Loops that are written out around this place, and which turn of each it is."""
        self.written_out: Loop | None = None
        """The innermost loop around this place whose turns stand one after another."""
        self.waiting: dict[int, list[tuple[str, str]]] = {}
        """What will be added to elements side by side, and where these are."""

    def atomic(self, merge: Merge, alone: bool = False) -> None:
        dtype = merge.value.dtype
        kind = MEMORY[dtype]
        place = self.element(merge.buffer, merge.offset, dtype)
        value = self.value(merge.value)
        how = _ATOMIC.get((merge.operator, kind))
        if not alone and self.is_one_of_neighbours(merge):
            self.together(merge, place, value)
            return
        if how is None:
            self.compare_and_swap(merge, place, value)
        else:
            self.line(f"atomicrmw {how} ptr {place}, {kind} {value} {_ORDER}")

    def is_one_of_neighbours(self, merge: Merge) -> bool:
        """Whether turns of the loop around it, which is written out, add to a run of elements."""
        loop = self.written_out
        if not self.wide or (merge.operator, merge.value.dtype) != ("add", torch.float32):
            return False
        if loop is None or not any(merge is each for each in loop.body):
            return False
        rest, number = self.apart_from_turns(merge.offset)
        begin = number - int(self.turns[loop.counter])
        turns = int(loop.stop.value) if isinstance(loop.stop, Constant) else 1
        return (
            loop.counter not in counters_of(rest)
            and turns % _WIDE == 0 == begin % _WIDE
            and is_multiple(rest, _WIDE)
        )

    def together(self, merge: Merge, place: str, value: str) -> None:
        """Once there are enough, one instruction adds them all."""
        waiting = self.waiting.setdefault(id(merge), [])
        waiting.append((place, value))
        if len(waiting) < _WIDE:
            return
        first = self.line(f"addrspacecast ptr {waiting[0][0]} to ptr addrspace(1)")
        values = ", ".join(f"float {each}" for _, each in waiting)
        self.lines.append(f"  call void asm sideeffect {_ADD}(ptr addrspace(1) {first}, {values})")
        waiting.clear()

    def compare_and_swap(self, merge: Merge, place: str, value: str) -> None:
        """Again and again, until nobody came between."""
        dtype = merge.value.dtype
        kind = MEMORY[dtype]
        bits = f"i{8 * SIZES[kind]}"
        self.count += 1
        label = f"swap{self.count}"
        first = self.line(f"load {bits}, ptr {place}")
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
        swap = f"cmpxchg ptr {place}, {bits} %{label}.old, {bits} {new} {_ORDER} monotonic"
        self.lines += [
            f"  %{label}.pair = {swap}",
            f"  %{label}.seen = extractvalue {{ {bits}, i1 }} %{label}.pair, 0",
            f"  %{label}.ok = extractvalue {{ {bits}, i1 }} %{label}.pair, 1",
            f"  br i1 %{label}.ok, label %{label}.end, label %{label}",
            f"{label}.end:",
        ]

    def apart_from_turns(self, offset: Expression) -> tuple[Expression, int]:
        """An offset without what is known of it where loops are written out, and that."""
        match offset:
            case Apply("add", (rest, Counter(name))) if self.named(name).isdigit():
                rest, number = self.apart_from_turns(rest)
                return rest, number + int(self.named(name))
            case Apply("add", (rest, Constant(value))):
                rest, number = self.apart_from_turns(rest)
                return rest, number + int(value)
        return offset, 0


def counters_of(expression: Expression) -> set[str]:
    """The loops that a value depends on."""
    return {each.name for each in walk_expression(expression) if isinstance(each, Counter)}


def is_multiple(offset: Expression, of: int) -> bool:
    """Whether it is one, as far as can be seen."""
    match offset:
        case Constant(value):
            return int(value) % of == 0
        case Apply("mul", (left, right)):
            return is_multiple(left, of) or is_multiple(right, of)
        case Apply("add" | "sub", (left, right)):
            return is_multiple(left, of) and is_multiple(right, of)
    return False
