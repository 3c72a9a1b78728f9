"""The body of a GPU kernel as lines of LLVM IR: loops divided among a team of threads, or unrolled.

A kernel is one parallel loop.  A team of `kernel.team` threads runs each of its iterations: one
thread, a part of a warp, a warp, or a block.  The threads of a team, its lanes, divide the
iterations of `vector` loops among themselves and reduce accumulators at the end of each.  Outside
of these loops every lane computes the same, and the first lane stores.

    %g      the iteration of this team
    %lane   the number of this thread in its team
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from adjoint.emit.arithmetic import Callees
from adjoint.emit.atomics import counters_of
from adjoint.emit.body import is_short
from adjoint.emit.lanes import LaneBody
from adjoint.emit.math import BRANCHING, condition_symbol, symbol
from adjoint.emit.shortcuts import SHORTCUTS
from adjoint.emit.spelling import MEMORY, REGISTERS, SUFFIX, literal
from adjoint.emit.unswitching import uniform_guard
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
from adjoint.loops.teams import WARP, max_unrolled_copies, threads_per_block, trips_per_thread
from adjoint.target import Target

# Conditions that one unrolled loop is unswitched on: each doubles its code.
MAX_UNSWITCHED_CONDITIONS = 4

_FAIL = """\
  call void @__assertfail(ptr addrspacecast (ptr addrspace(1) @said.wrong to ptr),
    ptr addrspacecast (ptr addrspace(1) @said.where to ptr), i32 0,
    ptr addrspacecast (ptr addrspace(1) @said.where to ptr), i64 1)"""


class TeamBody(LaneBody):
    def __init__(self, kernel: Kernel, callees: Callees, target: Target) -> None:
        super().__init__(callees, kernel.team, target)
        self.kernel = kernel
        self.is_divided = False
        """Whether this place is inside a loop whose iterations the team divides."""
        self.registers: dict[tuple[object, ...], str] = {}
        """Registers of loads and checked indices, by their text and the unrolled iterations."""
        self.settled: dict[int, Expression] = {}
        """The values of guarded expressions whose condition is known here."""
        self.checks: dict[int, list[Expression]] = {}
        """The index checks of each block."""
        self.globals: list[str] = []
        self.written = {buffer.name for buffer in kernel.buffers if buffer.written}
        self.written |= {s.name for s in walk(kernel.body) if isinstance(s, TeamMemory)}

    def load_metadata(self, buffer: str) -> str:
        """Buffers that the kernel does not write are invariant, across barriers and shuffles."""
        return "" if buffer in self.written else ", !invariant.load !2"

    def parallel(self, loop: Loop) -> None:
        """One iteration of the parallel loop, if there is one for this team."""
        block, team = threads_per_block(self.team), self.team
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
        """Check indices first: a check between two loads would keep LLVM from vectorizing them."""
        if id(body) not in self.checks:
            self.checks[id(body)] = _checks(body)
        for index in self.checks[id(body)]:
            if self.is_known(index):
                self.value(index)
        super().block(body)

    def is_known(self, expression: Expression) -> bool:
        """Whether it can be computed here, and no statement of the kernel changes its value."""
        for part in walk_expression(expression):
            if isinstance(part, Load) and part.buffer in self.written:
                return False
            if isinstance(part, Counter | Name) and not any(part.name in n for n in self.names):
                return False
        return True

    def statement(self, statement: Statement) -> None:
        match statement:
            case Loop(mapping=Mapping.VECTOR) if self.team > 1 and not self.is_divided:
                self.divide(statement)
            case Store() | Merge() if self.team > 1 and not self.is_divided:
                self.by_first_lane(statement)
            case Merge(shared=True):
                self.atomic(statement)
            case _:
                super().statement(statement)

    def by_first_lane(self, statement: Store | Merge) -> None:
        """A store outside of divided loops: all lanes have the value, one stores it."""
        # Computed before the branch, so that it may be used after the branch as well.
        self.value(statement.value)
        label = self.label("first")
        first = self.line("icmp eq i64 %lane, 0")
        with self.only_if(first, label):
            self.scopes.append({})
            with self.own_registers():
                if isinstance(statement, Merge) and statement.shared:
                    self.atomic(statement, vectorize=False)
                else:
                    super().statement(statement)
            self.scopes.pop()

    # Loops whose iterations the team divides

    def divide(self, loop: Loop) -> None:
        """Each lane runs every `team`-th iteration."""
        updates = self.outer_updates(loop)
        partials = {name: self.partial(name, update) for name, update in updates.items()}
        start, stop = self.value(loop.start), self.value(loop.stop)
        self.names.append(dict(partials))
        self.is_divided = True
        if isinstance(loop.stop, Constant) and isinstance(loop.start, Constant):
            self.counted(loop, int(loop.start.value), int(loop.stop.value))
        else:
            self.strided(loop, start, stop)
        self.is_divided = False
        self.names.pop()
        for name, update in updates.items():
            self.reduce_lanes(name, partials[name], update)
        if self.is_read_elsewhere(loop):
            self.barrier()

    def outer_updates(self, loop: Loop) -> dict[str, Update]:
        """Updates in the loop of accumulators from outside of it."""
        found: dict[str, Update] = {}
        for statement in walk(loop.body):
            if not isinstance(statement, Update) or statement.name in self.arrays:
                continue
            if any(statement.name in names for names in self.names):
                found[statement.name] = statement
        return found

    def partial(self, name: str, update: Update) -> str:
        """The address of a lane's own part of an accumulator, which starts as the identity."""
        self.count += 1
        dtype = update.value.dtype
        kind, address = REGISTERS[dtype], f"%var.{name}.{self.count}"
        self.allocas.append(f"  {address} = alloca {kind}")
        start = literal(identity(update.operator, dtype), dtype)
        self.lines.append(f"  store {kind} {start}, ptr {address}")
        return address

    def counted(self, loop: Loop, start: int, stop: int) -> None:
        """A constant range: unrolled, unless that is too much code.

        The last iteration is for some of the lanes only, where the range does not divide evenly.
        """
        trips = trips_per_thread(max(0, stop - start), self.team)
        if trips * _copies(loop.body) > max_unrolled_copies(self.team):
            self.strided(loop, str(start), str(stop))
            return
        for trip in range(trips):
            counter = self.line(f"add nuw nsw i64 %lane, {start + trip * self.team}")
            if start + (trip + 1) * self.team <= stop:
                self.unrolled_iteration(loop, counter, str(trip))
                continue
            label = self.label("rest")
            is_there = self.line(f"icmp slt i64 {counter}, {stop}")
            with self.only_if(is_there, label), self.own_registers():
                self.unrolled_iteration(loop, counter, str(trip))

    def strided(self, loop: Loop, start: str, stop: str) -> None:
        first = self.line(f"add nsw i64 {start}, %lane")
        with self.own_registers():
            super().loop_over(loop, first, stop, self.team)

    def elements(self, per: tuple[tuple[str, int], ...]) -> int:
        """A thread has elements only for its own iterations of the first loop, which the team
        divides."""
        if self.is_divided:
            (counter, count), *rest = per
            per = ((counter, trips_per_thread(count, self.team)), *rest)
        return super().elements(per)

    def iteration_number(self, per: tuple[tuple[str, int], ...]) -> str:
        """A constant: loops with accumulators of several elements are unrolled."""
        number = 0
        for counter, trips in per:
            number = number * trips + int(self.iterations[counter])
        return str(number)

    # Unrolled loops

    def unrolled_iteration(self, loop: Loop, counter: str, number: str) -> None:
        """The body of a loop for iteration `number` of this thread."""
        self.iterations[loop.counter] = number
        self.iteration(loop, counter)
        del self.iterations[loop.counter]

    @contextmanager
    def own_registers(self) -> Iterator[None]:
        """A block that may not run: what it loads is not available after it."""
        before, self.registers = self.registers, dict(self.registers)
        yield
        self.registers = before

    def loop_over(self, loop: Loop, start: str, stop: str, step: int = 1) -> None:
        """Short loops are unrolled here, so that adjacent elements become one vector access."""
        if is_short(loop) and start == "0":
            assert isinstance(loop.stop, Constant)
            self.unroll(loop, int(loop.stop.value))
            return
        with self.own_registers():
            super().loop_over(loop, start, stop, step)

    def unroll(self, loop: Loop, trips: int) -> None:
        """All iterations; a condition that they share is branched on first."""
        may_branch = len(self.settled) < MAX_UNSWITCHED_CONDITIONS
        guard = uniform_guard(loop, self.settled) if may_branch else None
        if guard is None or not self.is_known(guard[1]):
            outer, self.unrolled = self.unrolled, loop
            for trip in range(trips):
                self.unrolled_iteration(loop, str(trip), str(trip))
            self.unrolled = outer
            return
        expression, condition = guard
        label = self.label("choice")
        holds = self.value(condition)
        self.lines.append(f"  br i1 {holds}, label %{label}.so, label %{label}.else")
        for value, branch in ((expression.value, "so"), (expression.otherwise, "else")):
            self.lines.append(f"{label}.{branch}:")
            self.settled[id(expression)] = value
            self.scopes.append({})
            with self.own_registers():
                self.unroll(loop, trips)
            self.scopes.pop()
            del self.settled[id(expression)]
            self.lines.append(f"  br label %{label}.end")
        self.lines.append(f"{label}.end:")

    # Expressions

    def computed(self, expression: Load | Apply | Cast | Guarded) -> str:
        """What one loop over a row has loaded or checked stays in registers for the next."""
        match expression:
            case Load(buffer) if buffer not in self.written:
                key = (show_expression(expression), *self.iterations.items())
            case Apply("within"):
                counters = counters_of(expression)
                inside = [each for each in self.iterations.items() if each[0] in counters]
                key = (show_expression(expression), *inside)
            case _:
                return super().computed(expression)
        if key not in self.registers:
            self.registers[key] = super().computed(expression)
        return self.registers[key]

    def fail(self) -> None:
        """Abort the kernel with an assertion that names the reason."""
        self.lines.append(_FAIL)

    def element(self, buffer: str, offset: Expression, dtype: torch.dtype) -> str:
        """Constant parts of offsets come last: LLVM sees which elements are adjacent."""
        rest, number = self.without_known_part(offset)
        address = super().element(buffer, rest, dtype)
        if number == 0:
            return address
        return self.line(f"getelementptr inbounds {MEMORY[dtype]}, ptr {address}, i64 {number}")

    def rounded(self, value: str) -> str:
        """As `Arithmetic` rounds, by an instruction where the GPU has one."""
        narrow = self.line(f"fptrunc float {value} to bfloat")
        return self.line(f"fpext bfloat {narrow} to float")

    def floating(self, operator: str, values: Sequence[str], dtype: torch.dtype) -> str:
        """Functions that are cheap where their arguments are small branch on their size."""
        if operator in SHORTCUTS and dtype == torch.float32:
            self.callees.shortcuts.add(operator)
            return self.line(f"call float @short.{operator}(float {values[0]})")
        if operator not in BRANCHING or dtype not in (torch.float32, torch.float64):
            return super().floating(operator, values, dtype)
        kind = REGISTERS[dtype]
        suffix, arguments = SUFFIX[kind], ", ".join(f"{kind} {value}" for value in values)
        self.callees.branching.add((operator, suffix))
        near = self.line(f"call i1 @{condition_symbol(operator, suffix)}({arguments})")
        label = self.label("size")
        self.lines += [f"  br i1 {near}, label %{label}.near, label %{label}.far"]
        results: list[str] = []
        for name, branch in ((f"near_{operator}", "near"), (operator, "far")):
            self.lines.append(f"{label}.{branch}:")
            call = f"call {kind} @{symbol(name, suffix)}({arguments})"
            results.append(f"[ {self.line(call)}, %{label}.{branch} ]")
            self.lines.append(f"  br label %{label}.end")
        self.lines.append(f"{label}.end:")
        return self.line(f"phi {kind} {', '.join(results)}")

    def guarded(self, expression: Guarded) -> str:
        if id(expression) in self.settled:
            return self.value(self.settled[id(expression)])
        with self.own_registers():
            return super().guarded(expression)

    # Shared memory

    def team_memory(self, memory: TeamMemory) -> None:
        """Shared memory of the block, of which each team has its own part."""
        kind, teams = MEMORY[memory.dtype], threads_per_block(self.team) // self.team
        whole = f"@{self.kernel.name}.{memory.name}"
        count = f"[{teams * memory.count} x {kind}]"
        self.globals.append(f"{whole} = internal addrspace(3) global {count} undef, align 16")
        which = "%which" if teams > 1 else "0"
        first = self.line(f"mul nuw nsw i64 {which}, {memory.count}")
        part = self.line(f"getelementptr {kind}, ptr addrspace(3) {whole}, i64 {first}")
        self.lines.append(f"  %b.{memory.name} = addrspacecast ptr addrspace(3) {part} to ptr")

    def is_read_elsewhere(self, loop: Loop) -> bool:
        """Whether other lanes may read what the loop stores."""
        inside = list(walk(loop.body))
        stored = {s.buffer for s in inside if isinstance(s, Store | Merge)}
        if not stored:
            return False
        seen: set[int] = set()
        for statement in walk(self.kernel.body):
            if any(statement is s for s in inside):
                continue
            if isinstance(statement, Merge) and statement.buffer in stored:
                return True
            for expression in expressions(statement):
                for leaf in walk_expression(expression, seen):
                    if isinstance(leaf, Load) and leaf.buffer in stored:
                        return True
        return False


def _checks(body: tuple[Statement, ...]) -> list[Expression]:
    """The unconditional index checks of a block, each after those that it depends on."""
    found: list[Expression] = []
    seen: set[int] = set()

    def search(expression: Expression) -> None:
        if id(expression) in seen:
            return
        seen.add(id(expression))
        conditional = expression.value if isinstance(expression, Guarded) else None
        for child in children(expression):
            if child is not conditional:
                search(child)
        if isinstance(expression, Apply) and expression.operator == "within":
            found.append(expression)

    for statement in walk(body):
        for expression in expressions(statement):
            search(expression)
    return found


def _copies(body: tuple[Statement, ...]) -> int:
    """How many copies of its innermost statements a body has when its loops are unrolled."""
    return max(
        (
            int(statement.stop.value) * _copies(statement.body)
            for statement in body
            if isinstance(statement, Loop) and isinstance(statement.stop, Constant)
        ),
        default=1,
    )
