"""The native interpreter of host code: a few nanoseconds for an instruction."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

from adjoint.runtime.cpu.callables import runner
from adjoint.runtime.cpu.function_text import FunctionText
from adjoint.runtime.plans.hostcode import Op
from adjoint.runtime.plans.layout import MAX_TEMPORARY_BYTES

# The function that executes instructions.
COMPUTE = "adjoint.compute"


class _Function(FunctionText):
    """A function of 64-bit integers, with loops and conditions as Python contexts.

    Operands are the names of values, or numbers.
    """

    def __init__(self, name: str, parameters: str) -> None:
        super().__init__(f"i64 @{name}({parameters})")

    def variable(self, value: str | int = 0) -> str:
        name = self.allocated("i64", "var")
        self.set(name, value)
        return name

    def set(self, variable: str, value: str | int) -> None:
        self.line(f"store i64 {value}, ptr {variable}")

    def get(self, variable: str) -> str:
        return self.do(f"load i64, ptr {variable}")

    def at(self, base: str, index: str | int) -> str:
        return self.do(f"getelementptr i64, ptr {base}, i64 {index}")

    def load(self, base: str, index: str | int) -> str:
        return self.get(self.at(base, index))

    def store(self, value: str | int, base: str, index: str | int) -> None:
        self.set(self.at(base, index), value)

    def binary(self, op: str, a: str | int, b: str | int) -> str:
        return self.do(f"{op} i64 {a}, {b}")

    def largest(self, a: str | int, b: str | int) -> str:
        return self.choose(self.binary("icmp sgt", a, b), a, b)

    def choose(self, condition: str, a: str | int, b: str | int) -> str:
        return self.do(f"select i1 {condition}, i64 {a}, i64 {b}")

    def both(self, a: str, b: str) -> str:
        return self.do(f"and i1 {a}, {b}")

    def result(self, value: str | int) -> None:
        self.line(f"ret i64 {value}")

    @contextlib.contextmanager
    def when(self, condition: str) -> Iterator[None]:
        inside, after = self.unique("when"), self.unique("after")
        self.go(f"i1 {condition}, label %{inside}, label %{after}")
        self.label(inside)
        yield
        self.go(f"label %{after}")
        self.label(after)

    @contextlib.contextmanager
    def loop(self, count: str | int, start: str | int = 0) -> Iterator[str]:
        """From `start` on, below `count`; the value is the index."""
        index = self.variable()
        self.set(index, start)
        with self.repeated(lambda: self.binary("icmp slt", self.get(index), count)):
            yield self.get(index)
            self.set(index, self.binary("add", self.get(index), 1))

    def room_before(
        self, count: str, comes_after: Callable[[str], str], arrays: Sequence[str]
    ) -> str:
        """One step of insertion sort: the place for a new element in the first `count` ones.

        Those that come after it (`comes_after`) are moved by one, in all `arrays`.
        """
        to, moving = self.variable(count), self.variable(1)

        def is_unfinished() -> str:
            more = self.binary("icmp ne", self.get(moving), 0)
            return self.both(more, self.binary("icmp sgt", self.get(to), 0))

        with self.repeated(is_unfinished):
            here = self.get(to)
            before = self.binary("sub", here, 1)
            after = comes_after(before)
            self.set(moving, self.do(f"zext i1 {after} to i64"))
            with self.when(after):
                for array in arrays:
                    self.store(self.load(array, before), array, here)
                self.set(to, before)
        return self.get(to)

    @contextlib.contextmanager
    def repeated(self, condition: Callable[[], str]) -> Iterator[None]:
        test, inside, after = self.unique("test"), self.unique("loop"), self.unique("done")
        self.go(f"label %{test}")
        self.label(test)
        self.go(f"i1 {condition()}, label %{inside}, label %{after}")
        self.label(inside)
        yield
        self.go(f"label %{test}")
        self.label(after)


def _is_smaller(f: _Function, size: str, order: str, count: str) -> Callable[[str], str]:
    """Whether the block at a place of `order` has fewer than `count` bytes."""
    return lambda place: f.binary("icmp slt", f.load(size, f.load(order, place)), count)


def _best_fit() -> str:
    """`_best_fit` of `layout.py` in LLVM IR: it stores the offsets and returns the total bytes.

    Placed blocks are kept in the order of addresses.  With `%drops` blocks come in the order of
    their first steps, so one whose lifetime has ended is dropped from the list.
    """
    f = _Function(
        "adjoint.best.fit",
        "i64 %n, ptr %first, ptr %last, ptr %size, ptr %order, ptr %offset, ptr %placed,"
        " i64 %drops",
    )
    starts, ends = f.at("%placed", "%n"), f.at("%placed", f.binary("mul", "%n", 2))
    count, total = f.variable(), f.variable()
    drops = f.binary("icmp ne", "%drops", 0)
    with f.loop("%n") as turn:
        block = f.load("%order", turn)
        first, last = f.load("%first", block), f.load("%last", block)
        size = f.load("%size", block)
        with f.when(drops):
            kept = f.variable()
            with f.loop(f.get(count)) as place:
                other = f.load("%placed", place)
                with f.when(f.binary("icmp sge", f.load("%last", other), first)):
                    to = f.get(kept)
                    f.store(other, "%placed", to)
                    f.store(f.load(starts, place), starts, to)
                    f.store(f.load(ends, place), ends, to)
                    f.set(kept, f.binary("add", to, 1))
            f.set(count, f.get(kept))
        end, best, room = f.variable(), f.variable(-1), f.variable(2**63 - 1)
        with f.loop(f.get(count)) as place:
            other = f.load("%placed", place)
            begins = f.binary("icmp sle", f.load("%first", other), last)
            ended = f.binary("icmp sge", f.load("%last", other), first)
            with f.when(f.both(begins, ended)):
                gap = f.binary("sub", f.load(starts, place), f.get(end))
                fits = f.binary("icmp sge", gap, size)
                with f.when(f.both(fits, f.binary("icmp slt", gap, f.get(room)))):
                    f.set(best, f.get(end))
                    f.set(room, gap)
                f.set(end, f.largest(f.get(end), f.load(ends, place)))
        found = f.binary("icmp sge", f.get(best), 0)
        start = f.choose(found, f.get(best), f.get(end))
        stop = f.binary("add", start, size)
        f.store(start, "%offset", block)
        f.set(total, f.largest(f.get(total), stop))
        # Insert it before those that begin later.
        to = f.room_before(
            f.get(count),
            lambda place: f.binary("icmp sgt", f.load(starts, place), start),
            ("%placed", starts, ends),
        )
        f.store(block, "%placed", to)
        f.store(start, starts, to)
        f.store(stop, ends, to)
        f.set(count, f.binary("add", f.get(count), 1))
    f.result(f.get(total))
    return f.text()


def _layout() -> str:
    """`layout.assign_offsets`, of the table that `HostCode.layout` makes.

    1 if a temporary has more than `MAX_TEMPORARY_BYTES`.
    """
    f = _Function("adjoint.layout", "ptr %words, ptr %table")
    n, alignment, goal = f.load("%table", 0), f.load("%table", 1), f.load("%table", 2)

    def column(number: int) -> str:
        return f.at("%table", f.binary("add", f.binary("mul", n, number), 3))

    first, last, size_at, offset_at, order, events = map(column, range(6))
    size, by_size, offsets, others, placed = map(column, (7, 8, 9, 10, 11))
    with f.loop(n) as block:
        count = f.largest(f.load("%words", f.load(size_at, block)), 1)
        with f.when(f.binary("icmp sgt", count, MAX_TEMPORARY_BYTES)):
            f.result(1)
            # A basic block must end in a terminator.
            f.label(f.unique("unreached"))
        up = f.binary("sub", f.binary("add", count, alignment), 1)
        f.store(f.binary("mul", f.binary("sdiv", up, alignment), alignment), size, block)
    fit = f"call i64 @adjoint.best.fit(i64 {n}, ptr {first}, ptr {last}, ptr {size}, ptr "
    total = f.variable(f.do(f"{fit}{order}, ptr {offsets}, ptr {placed}, i64 1)"))
    live, peak = f.variable(), f.variable()
    with f.loop(f.binary("mul", n, 2)) as turn:
        event = f.load(events, turn)
        starts = f.binary("icmp sgt", event, 0)
        block = f.choose(
            starts, f.binary("sub", event, 1), f.binary("sub", f.binary("sub", 0, event), 1)
        )
        bytes_ = f.load(size, block)
        change = f.choose(starts, bytes_, f.binary("sub", 0, bytes_))
        f.set(live, f.binary("add", f.get(live), change))
        f.set(peak, f.largest(f.get(peak), f.get(live)))
    with f.when(f.binary("icmp sgt", f.get(total), f.get(peak))):
        # Sort by size, the largest first; those of equal size stay in order.
        with f.loop(n) as turn:
            block = f.load(order, turn)
            to = f.room_before(turn, _is_smaller(f, size, by_size, f.load(size, block)), (by_size,))
            f.store(block, by_size, to)
        less = f.do(f"{fit}{by_size}, ptr {others}, ptr {placed}, i64 0)")
        with f.when(f.binary("icmp slt", less, f.get(total))):
            f.set(total, less)
            with f.loop(n) as block:
                f.store(f.load(others, block), offsets, block)
    with f.loop(n) as block:
        f.store(f.load(offsets, block), "%words", f.load(offset_at, block))
    f.store(f.get(total), "%words", goal)
    f.result(0)
    return f.text()


def _interpreter() -> str:
    """Executes instructions; 0, or one more than the place of one whose result is undefined."""
    f = _Function(COMPUTE, "ptr %words, i64 %0, ptr %1, ptr %code, i64 %count, i64 %2")
    with f.loop("%count") as place:
        at = f.at("%code", f.binary("mul", place, 4))
        op, result = f.load(at, 0), f.load(at, 1)
        x_at, y_at = f.load(at, 2), f.load(at, 3)
        is_layout = f.binary("icmp eq", op, int(Op.LAYOUT))
        f.go(f"i1 {is_layout}, label %layout, label %arithmetic")
        f.label("layout")
        failed = f.do(f"call i64 @adjoint.layout(ptr %words, ptr {f.at('%words', x_at)})")
        f.go(f"i1 {f.binary('icmp ne', failed, 0)}, label %undefined, label %next")
        f.label("arithmetic")
        x, y = f.load("%words", x_at), f.load("%words", y_at)
        simple = {Op.ADD: "sadd", Op.SUB: "ssub", Op.MUL: "smul", Op.MIN: "", Op.MAX: ""}
        cases = " ".join(f"i64 {int(each)}, label %{each.name}" for each in simple)
        f.line(f"switch i64 {op}, label %divide [ {cases} ]")
        for each, name in simple.items():
            f.label(each.name)
            if not name:
                less = f.binary("icmp slt" if each is Op.MIN else "icmp sgt", x, y)
                f.store(f.choose(less, x, y), "%words", result)
                f.go("label %next")
                continue
            both = f.do(f"call {{i64, i1}} @llvm.{name}.with.overflow.i64(i64 {x}, i64 {y})")
            f.store(f.do(f"extractvalue {{i64, i1}} {both}, 0"), "%words", result)
            overflows = f.do(f"extractvalue {{i64, i1}} {both}, 1")
            f.go(f"i1 {overflows}, label %undefined, label %next")
        f.label("divide")
        # The quotient of the least number and -1 is beyond 64 bits, too.
        least = f.both(f.binary("icmp eq", x, -(2**63)), f.binary("icmp eq", y, -1))
        undefined = f.do(f"or i1 {f.binary('icmp eq', y, 0)}, {least}")
        f.go(f"i1 {undefined}, label %undefined, label %defined")
        f.label("undefined")
        f.result(f.binary("add", place, 1))
        f.label("defined")
        quotient, rest = f.binary("sdiv", x, y), f.binary("srem", x, y)
        # LLVM rounds towards zero: one less where signs differ and something is left.
        inexact = f.binary("icmp ne", rest, 0)
        opposite = f.binary("icmp slt", f.binary("xor", rest, y), 0)
        corrects = f.both(inexact, opposite)
        floor = f.choose(corrects, f.binary("sub", quotient, 1), quotient)
        modulo = f.choose(corrects, f.binary("add", rest, y), rest)
        is_div = f.binary("icmp eq", op, int(Op.DIV))
        f.store(f.choose(is_div, floor, modulo), "%words", result)
        f.go("label %next")
        f.label("next")
    f.result(0)
    return f.text()


def text() -> str:
    """The text that defines the interpreter."""
    declared = [
        f"declare {{i64, i1}} @llvm.{name}.with.overflow.i64(i64, i64)\n"
        for name in ("sadd", "ssub", "smul")
    ]
    return "".join([*declared, _best_fit(), _layout(), _interpreter()])


@functools.cache
def interpreter() -> Callable[[int], Callable[..., int]]:
    """Makes callables that execute instructions, described by words (`callables.py`): the
    address of the words, two that are not used, the address of the code and its length."""
    return runner(text(), COMPUTE)
