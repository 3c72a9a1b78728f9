"""What a team of threads of a GPU does, as lines of LLVM text.

A kernel is one parallel loop.  A team of `kernel.team` threads takes each of its iterations: one
thread, a part of a warp, a warp, or a block.  The threads of a team, its lanes, share out the
`vector` loops in it, and put together at their ends what each has of an accumulator; what stands
outside of such loops all of them compute, and the first stores.

    %g      the iteration of this team
    %lane   the number of this thread in its team
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from adjoint.emit.atomics import AtomicBody, counters_of
from adjoint.emit.body import SHORT, Wanted
from adjoint.emit.choices import choice_in
from adjoint.emit.math import NEAR, symbol
from adjoint.emit.shortcuts import SHORTCUTS
from adjoint.emit.spelling import MEMORY, REGISTERS, SIZES, SUFFIX, literal
from adjoint.loops.expressions import (
    Apply,
    Cast,
    Constant,
    Counter,
    Expression,
    Guarded,
    Load,
    Name,
    children,
)
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.operators import identity
from adjoint.loops.show import show_expression
from adjoint.loops.statements import (
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
    expressions,
    walk,
)
from adjoint.loops.teams import WARP, block_of, most_copies, turns_of

# Choices made for all turns of a loop: it is written out for each way that they leave.
MOST_CHOICES = 4

_FAIL = """\
  call void @__assertfail(ptr addrspacecast (ptr addrspace(1) @said.wrong to ptr),
    ptr addrspacecast (ptr addrspace(1) @said.where to ptr), i32 0,
    ptr addrspacecast (ptr addrspace(1) @said.where to ptr), i64 1)"""


class TeamBody(AtomicBody):
    def __init__(self, kernel: Kernel, wanted: Wanted, wide: bool) -> None:
        super().__init__(wanted, wide)
        self.kernel = kernel
        self.team = kernel.team
        self.sharing = False
        """Inside a loop that the team shares out."""
        self.held: dict[tuple[Any, ...], str] = {}
        """What has been read, by place and turns."""
        self.settled: dict[int, Expression] = {}
        """What an expression with a choice is here, where it has been made."""
        self.checks: dict[int, list[Expression]] = {}
        """The checks of indices in each block."""
        self.globals: list[str] = []
        self.written = {buffer.name for buffer in kernel.buffers if buffer.written}
        self.written |= {each.name for each in walk(kernel.body) if isinstance(each, TeamMemory)}

    def hint_for(self, buffer: str) -> str:
        """No barrier and no shuffle changes what the kernel does not write."""
        return "" if buffer in self.written else ", !invariant.load !2"

    def parallel(self, loop: Loop) -> None:
        """One iteration, if there is one for this team."""
        block, team = block_of(self.team), self.team
        self.lines += [
            "  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
            "  %ctaid = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
            "  %block = zext i32 %ctaid to i64",
            "  %thread = zext i32 %tid to i64",
        ]
        if team == block:
            self.lines += ["  %g = add i64 %block, 0", "  %lane = add i64 %thread, 0"]
        else:
            self.lines += [
                f"  %first = mul nuw nsw i64 %block, {block // team}",
                f"  %which = udiv i64 %thread, {team}",
                "  %g = add nuw nsw i64 %first, %which",
                f"  %lane = urem i64 %thread, {team}",
            ]
        if 1 < team < WARP:
            self.lines += [
                f"  %in.warp = and i32 %tid, {WARP - team}",
                f"  %mask = shl i32 {(1 << team) - 1}, %in.warp",
            ]
        stop = self.value(loop.stop)
        self.lines += [
            f"  %any = icmp slt i64 %g, {stop}",
            "  br i1 %any, label %body, label %done",
            "body:",
        ]
        self.scopes.append({})
        self.names.append({loop.counter: "%g"})
        self.block(loop.body)
        self.lines += ["  br label %done", "done:"]

    def block(self, body: tuple[Statement, ...]) -> None:
        """Indices first: a check between reads of neighbours would keep them apart."""
        if id(body) not in self.checks:
            self.checks[id(body)] = _checks(body)
        for index in self.checks[id(body)]:
            if self.is_known(index):
                self.value(index)
        super().block(body)

    def is_known(self, expression: Expression) -> bool:
        """Whether all that it depends on is there, and will not be written to."""
        for each in walk_expression(expression):
            if isinstance(each, Load) and each.buffer in self.written:
                return False
            if isinstance(each, Counter | Name) and not any(each.name in n for n in self.names):
                return False
        return True

    def statement(self, statement: Statement) -> None:
        match statement:
            case Loop(mapping=Mapping.VECTOR) if self.team > 1 and not self.sharing:
                self.shared_out(statement)
            case Store() | Merge() if self.team > 1 and not self.sharing:
                self.by_the_first(statement)
            case Merge(shared=True):
                self.atomic(statement)
            case _:
                super().statement(statement)

    def by_the_first(self, statement: Store | Merge) -> None:
        """What is stored for all is stored once."""
        # Computed by all, so that it may be used after the branch as well.
        self.value(statement.value)
        self.count += 1
        label = f"first{self.count}"
        first = self.line("icmp eq i64 %lane, 0")
        self.lines += [f"  br i1 {first}, label %{label}, label %{label}.end", f"{label}:"]
        self.scopes.append({})
        with self.apart():
            if isinstance(statement, Merge) and statement.shared:
                self.atomic(statement, alone=True)
            else:
                super().statement(statement)
        self.scopes.pop()
        self.lines += [f"  br label %{label}.end", f"{label}.end:"]

    # Loops that the team shares out

    def shared_out(self, loop: Loop) -> None:
        """Each lane takes every `team`-th iteration."""
        sums = self.sums_of(loop)
        own = {name: self.own(name, update) for name, update in sums.items()}
        start, stop = self.value(loop.start), self.value(loop.stop)
        self.names.append(dict(own))
        self.sharing = True
        if isinstance(loop.stop, Constant) and isinstance(loop.start, Constant):
            self.counted(loop, int(loop.start.value), int(loop.stop.value))
        else:
            self.strided(loop, start, stop)
        self.sharing = False
        self.names.pop()
        for name, update in sums.items():
            self.put_together(name, own[name], update)
        if self.is_read_elsewhere(loop):
            self.barrier()

    def sums_of(self, loop: Loop) -> dict[str, Update]:
        """Accumulators from outside that the loop updates."""
        found: dict[str, Update] = {}
        for each in walk(loop.body):
            if not isinstance(each, Update) or each.name in self.arrays:
                continue
            if any(each.name in names for names in self.names):
                found[each.name] = each
        return found

    def own(self, name: str, update: Update) -> str:
        """A lane's own part of an accumulator."""
        self.count += 1
        dtype = update.value.dtype
        kind, place = REGISTERS[dtype], f"%var.{name}.{self.count}"
        self.allocas.append(f"  {place} = alloca {kind}")
        nothing = literal(identity(update.operator, dtype), dtype)
        self.lines.append(f"  store {kind} {nothing}, ptr {place}")
        return place

    def counted(self, loop: Loop, start: int, stop: int) -> None:
        """Turn by turn, if that is not too much text; the last may be for some lanes only."""
        turns = turns_of(max(0, stop - start), self.team)
        if turns * _copies(loop.body) > most_copies(self.team):
            self.strided(loop, str(start), str(stop))
            return
        for turn in range(turns):
            counter = self.line(f"add nuw nsw i64 %lane, {start + turn * self.team}")
            if start + (turn + 1) * self.team <= stop:
                self.turn(loop, counter, str(turn))
                continue
            self.count += 1
            label = f"rest{self.count}"
            some = self.line(f"icmp slt i64 {counter}, {stop}")
            self.lines += [f"  br i1 {some}, label %{label}, label %{label}.end", f"{label}:"]
            with self.apart():
                self.turn(loop, counter, str(turn))
            self.lines += [f"  br label %{label}.end", f"{label}.end:"]

    def elements(self, per: tuple[tuple[str, int], ...]) -> int:
        """A thread has those of its own turns; the first loop is the one shared out."""
        if self.sharing:
            (counter, count), *rest = per
            per = ((counter, turns_of(count, self.team)), *rest)
        return super().elements(per)

    def turn_of(self, per: tuple[tuple[str, int], ...]) -> str:
        """Known where it stands: loops with such accumulators are written out."""
        made = 0
        for counter, turns in per:
            made = made * turns + int(self.turns[counter])
        return str(made)

    def turn(self, loop: Loop, counter: str, which: str) -> None:
        """The body of a loop, for a turn that is known."""
        self.turns[loop.counter] = which
        self.inner(loop, counter)
        del self.turns[loop.counter]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is read here may not have been read elsewhere."""
        held, self.held = self.held, dict(self.held)
        yield
        self.held = held

    def loop_over(self, loop: Loop, start: str, stop: str, step: int = 1) -> None:
        """Short loops are written out, so that neighbours become one access to memory."""
        times = loop.stop.value if isinstance(loop.stop, Constant) else SHORT + 1
        if times <= SHORT and start == "0":
            self.write_out(loop, int(times))
            return
        with self.apart():
            super().loop_over(loop, start, stop, step)

    def write_out(self, loop: Loop, turns: int) -> None:
        """Turn by turn; once for each way, where all turns go the same."""
        choice = choice_in(loop, self.settled) if len(self.settled) < MOST_CHOICES else None
        if choice is None or not self.is_known(choice[1]):
            outer, self.written_out = self.written_out, loop
            for turn in range(turns):
                self.turn(loop, str(turn), str(turn))
            self.written_out = outer
            return
        expression, condition = choice
        self.count += 1
        label = f"choice{self.count}"
        holds = self.value(condition)
        self.lines.append(f"  br i1 {holds}, label %{label}.so, label %{label}.else")
        for way, where in ((expression.value, "so"), (expression.otherwise, "else")):
            self.lines.append(f"{label}.{where}:")
            self.settled[id(expression)] = way
            self.scopes.append({})
            with self.apart():
                self.write_out(loop, turns)
            self.scopes.pop()
            del self.settled[id(expression)]
            self.lines.append(f"  br label %{label}.end")
        self.lines.append(f"{label}.end:")

    def computed(self, expression: Load | Apply | Cast | Guarded) -> str:
        """What a phase of a row has read or checked, the next need not read or check again."""
        match expression:
            case Load(buffer) if buffer not in self.written:
                where = (show_expression(expression), *self.turns.items())
            case Apply("within"):
                counters = counters_of(expression)
                turns = [(name, turn) for name, turn in self.turns.items() if name in counters]
                where = (show_expression(expression), *turns)
            case _:
                return super().computed(expression)
        if where not in self.held:
            self.held[where] = super().computed(expression)
        return self.held[where]

    def fail(self) -> None:
        self.lines.append(_FAIL)

    def element(self, buffer: str, offset: Expression, dtype: torch.dtype) -> str:
        """Neighbours differ by a number that LLVM can see, and may so be one access."""
        rest, number = self.apart_from_turns(offset)
        place = super().element(buffer, rest, dtype)
        return (
            place
            if number == 0
            else self.line(f"getelementptr inbounds {MEMORY[dtype]}, ptr {place}, i64 {number}")
        )

    def rounded(self, value: str) -> str:
        """By an instruction, where the machine has one: it rounds as `Body` does."""
        narrow = self.line(f"fptrunc float {value} to bfloat")
        return self.line(f"fpext bfloat {narrow} to float")

    def floating(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        """Angles are near zero as a rule: then reducing them is short work, worth a branch."""
        if operator in SHORTCUTS and dtype == torch.float32:
            self.wanted.shortcuts.add(operator)
            return self.line(f"call float @short.{operator}(float {values[0]})")
        if operator not in ("sin", "cos") or dtype not in (torch.float32, torch.float64):
            return super().floating(operator, values, dtype)
        kind = REGISTERS[dtype]
        size = self.intrinsic("llvm.fabs", kind, values)
        near = self.line(f"fcmp ole {kind} {size}, {literal(NEAR[SUFFIX[kind]], dtype)}")
        self.count += 1
        label = f"angle{self.count}"
        self.lines += [f"  br i1 {near}, label %{label}.near, label %{label}.far"]
        ways: list[str] = []
        for name, where in ((f"near_{operator}", "near"), (operator, "far")):
            self.lines.append(f"{label}.{where}:")
            self.wanted.math.add((name, SUFFIX[kind]))
            call = f"call {kind} @{symbol(name, SUFFIX[kind])}({kind} {values[0]})"
            ways.append(f"[ {self.line(call)}, %{label}.{where} ]")
            self.lines.append(f"  br label %{label}.end")
        self.lines.append(f"{label}.end:")
        return self.line(f"phi {kind} {', '.join(ways)}")

    def guarded(self, expression: Guarded) -> str:
        if id(expression) in self.settled:
            return self.value(self.settled[id(expression)])
        with self.apart():
            return super().guarded(expression)

    def strided(self, loop: Loop, start: str, stop: str) -> None:
        first = self.line(f"add nsw i64 {start}, %lane")
        with self.apart():
            super().loop_over(loop, first, stop, self.team)

    def inner(self, loop: Loop, counter: str) -> None:
        self.scopes.append({})
        self.names.append({loop.counter: counter})
        self.block(loop.body)
        self.names.pop()
        self.scopes.pop()

    # Teams

    def put_together(self, name: str, own: str, update: Update) -> None:
        """What all lanes have, added to the accumulator; every lane has the same then."""
        dtype, operator = update.value.dtype, update.operator
        kind, place = REGISTERS[dtype], self.named(name)
        value = self.line(f"load {kind}, ptr {own}")
        step = min(self.team, WARP) // 2
        while step:
            value = self.combined(operator, value, self.from_lane(value, step, kind), dtype)
            step //= 2
        if self.team > WARP:
            value = self.across_warps(operator, value, dtype)
        old = self.line(f"load {kind}, ptr {place}")
        new = self.combined(operator, old, value, dtype)
        self.lines.append(f"  store {kind} {new}, ptr {place}")

    def from_lane(self, value: str, step: int, kind: str) -> str:
        """What the lane whose number differs in the bit `step` has."""
        words = self.words(value, kind)
        mask = "%mask" if self.team < WARP else "-1"
        call = "call i32 @llvm.nvvm.shfl.sync.bfly.i32"
        moved = [self.line(f"{call}(i32 {mask}, i32 {w}, i32 {step}, i32 31)") for w in words]
        return self.unwords(moved, kind)

    def across_warps(self, operator: str, value: str, dtype: torch.dtype) -> str:
        """By way of memory that the block shares; each lane adds in the same order."""
        kind = REGISTERS[dtype]
        held = "i8" if kind == "i1" else kind
        warps = self.team // WARP
        self.count += 1
        label = f"meet{self.count}"
        warp = self.line(f"udiv i64 %lane, {WARP}")
        place = self.line(f"getelementptr i64, ptr addrspace(3) @meeting, i64 {warp}")
        first = self.line(f"and i64 %lane, {WARP - 1}")
        is_first = self.line(f"icmp eq i64 {first}, 0")
        stored = self.line(f"zext i1 {value} to i8") if kind == "i1" else value
        self.lines += [
            f"  br i1 {is_first}, label %{label}, label %{label}.all",
            f"{label}:",
            f"  store {held} {stored}, ptr addrspace(3) {place}",
            f"  br label %{label}.all",
            f"{label}.all:",
        ]
        self.barrier()
        whole = ""
        for each in range(warps):
            at = self.line(f"getelementptr i64, ptr addrspace(3) @meeting, i64 {each}")
            part = self.line(f"load {held}, ptr addrspace(3) {at}")
            part = self.line(f"trunc i8 {part} to i1") if kind == "i1" else part
            whole = self.combined(operator, whole, part, dtype) if whole else part
        self.barrier()
        return whole

    def words(self, value: str, kind: str) -> list[str]:
        """A value as 32-bit words."""
        if kind in ("float", "half"):
            bits = f"i{8 * SIZES[kind]}"
            raw = self.line(f"bitcast {kind} {value} to {bits}")
            return [raw] if kind == "float" else [self.line(f"zext i16 {raw} to i32")]
        if kind in ("double", "i64"):
            raw = self.line(f"bitcast double {value} to i64") if kind == "double" else value
            high = self.line(f"lshr i64 {raw}, 32")
            return [self.line(f"trunc i64 {each} to i32") for each in (raw, high)]
        return [value] if kind == "i32" else [self.line(f"zext {kind} {value} to i32")]

    def unwords(self, words: list[str], kind: str) -> str:
        match kind:
            case "float":
                return self.line(f"bitcast i32 {words[0]} to float")
            case "half":
                return self.line(f"bitcast i16 {self.line(f'trunc i32 {words[0]} to i16')} to half")
            case "double" | "i64":
                low, high = (self.line(f"zext i32 {word} to i64") for word in words)
                both = self.line(f"or i64 {low}, {self.line(f'shl i64 {high}, 32')}")
                return both if kind == "i64" else self.line(f"bitcast i64 {both} to double")
            case "i32":
                return words[0]
            case _:
                return self.line(f"trunc i32 {words[0]} to {kind}")

    def barrier(self) -> None:
        """No lane goes on before all have come here, and sees what they have stored."""
        if self.team > WARP:
            self.lines.append("  call void @llvm.nvvm.barrier0()")
        else:
            mask = "%mask" if self.team < WARP else "-1"
            self.lines.append(f"  call void @llvm.nvvm.bar.warp.sync(i32 {mask})")

    def team_memory(self, memory: TeamMemory) -> None:
        """Memory that the block shares; each team of the block has its part."""
        kind, teams = MEMORY[memory.dtype], block_of(self.team) // self.team
        whole = f"@{self.kernel.name}.{memory.name}"
        count = f"[{teams * memory.count} x {kind}]"
        self.globals.append(f"{whole} = internal addrspace(3) global {count} undef, align 16")
        which = "%which" if teams > 1 else "0"
        first = self.line(f"mul nuw nsw i64 {which}, {memory.count}")
        part = self.line(f"getelementptr {kind}, ptr addrspace(3) {whole}, i64 {first}")
        self.lines.append(f"  %b.{memory.name} = addrspacecast ptr addrspace(3) {part} to ptr")

    def is_read_elsewhere(self, loop: Loop) -> bool:
        """Other lanes may read, later, what the loop stores."""
        inside = list(walk(loop.body))
        stored = {s.buffer for s in inside if isinstance(s, Store | Merge)}
        if not stored:
            return False
        seen: set[int] = set()
        for each in walk(self.kernel.body):
            if any(each is s for s in inside):
                continue
            if isinstance(each, Merge) and each.buffer in stored:
                return True
            for expression in expressions(each):
                for leaf in walk_expression(expression, seen):
                    if isinstance(leaf, Load) and leaf.buffer in stored:
                        return True
        return False


def _checks(body: tuple[Statement, ...]) -> list[Expression]:
    """The checks of indices in it that are made in any case, those that others need first."""
    found: list[Expression] = []
    seen: set[int] = set()

    def look(expression: Expression) -> None:
        if id(expression) in seen:
            return
        seen.add(id(expression))
        unsure = expression.value if isinstance(expression, Guarded) else None
        for each in children(expression):
            if each is not unsure:
                look(each)
        if isinstance(expression, Apply) and expression.operator == "within":
            found.append(expression)

    for statement in walk(body):
        for each in expressions(statement):
            look(each)
    return found


def _copies(body: tuple[Statement, ...]) -> int:
    """How often the innermost statements of a body are written out."""
    return max(
        (
            int(each.stop.value) * _copies(each.body)
            for each in body
            if isinstance(each, Loop) and isinstance(each.stop, Constant)
        ),
        default=1,
    )
