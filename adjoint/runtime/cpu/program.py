"""A plan as one Python function: native runs of kernels, with calls of operators between them.

Where tensors of the program lie is decided once for each set of input sizes, a *binding*: memory
for what lives inside the program, addresses and extents for each kernel.  A call then fills in the
addresses of its own inputs and outputs, and enters each run of kernels by one native call.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch

from adjoint.graph.boundary import passes_through
from adjoint.loops.plan import (
    Argument,
    Launch,
    LibraryCall,
    Number,
    Plan,
    RowTiles,
    Scratch,
    Size,
    Slot,
    SlotKind,
    operands_of,
)
from adjoint.runtime.checking import UnexpectedResult, checked_call, restoring_generators
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import runner
from adjoint.runtime.cpu.memory import (
    CPU,
    Entering,
    Interval,
    Pool,
    Word,
    Words,
    arrange,
    cache_bytes,
    keep_freed_memory,
)
from adjoint.runtime.cpu.tiles import tile_region, tile_runner
from adjoint.torch_private import symbols, trees

# A chunk of rows has at least so many elements, or starting a thread would take longer than it.
GRAIN = 8192

# New memory from this many bytes on comes from the system, page by page, which takes longer than
# to fill it.
LARGE = 1 << 16

# What the number of rows that a region takes at a time is a multiple of.
ROW_STEP = 16

# With fewer rows, products would take longer than what is saved.
LEAST_BLOCK = 256

# Bindings kept for input sizes seen lately: each holds the memory of the program's inner tensors.
KEPT_BINDINGS = 2


class BindingFailed(Exception):
    """A program has no binding for some sizes, because of its cause.  Nothing has run."""


@contextlib.contextmanager
def binding_failures() -> Iterator[None]:
    """What fails inside is `BindingFailed`."""
    try:
        yield
    except Exception as error:
        if passes_through(error):
            raise
        raise BindingFailed from error


class CpuProgram:
    """Runs a plan.  Takes its inputs out of the list that it is given."""

    device = torch.device("cpu")
    forgets_histories = False
    """Inputs may be tracked."""

    def __init__(self, plan: Plan, functions: Mapping[Launch, NativeFunction]) -> None:
        keep_freed_memory()
        self.plan = plan
        self.functions = functions
        """The code of each kernel, which is there as long as the program is."""
        self.runs = _runs(plan)
        self._run = self._made(self._writer())
        self._looking: Callable[..., Any] | None = None
        """The same, and looks at what operators return."""
        self._bindings: dict[Any, list[Binding]] = {}

    def _writer(self, looks: bool = False) -> Writer:
        return Writer(self.plan, self.runs, looks)

    def _made(self, writer: Writer) -> Callable[..., Any]:
        source, constants = writer.text()
        namespace: dict[str, Any] = {**constants}
        name = f"<adjoint program of {len(self.plan.steps)} steps>"
        exec(compile(source, name, "exec"), namespace)
        run: Callable[..., Any] = namespace["run"]
        return run

    def _look(self, inputs: list[Any], binding: Binding, *more: Any) -> Any:
        """Run, and look at what operators return; if it is not as promised, nothing has changed."""
        if self._looking is None:
            self._looking = self._made(self._writer(looks=True))
        kept = list(inputs)
        with restoring_generators(self.device):
            try:
                results = self._looking(inputs, binding, *more)
            except UnexpectedResult:
                inputs[:] = kept
                raise
        binding.looked = True
        return results

    def _binding(self, sizes: Sequence[int], threads: int) -> Binding:
        with binding_failures():
            return Binding(self, sizes, threads)

    def _sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            inputs[place] if dim < 0 else inputs[place].shape[dim]
            for _, place, dim in self.plan.symbols
        )

    def __call__(self, inputs: list[Any]) -> Any:
        threads = torch.get_num_threads()
        sizes = self._sizes(inputs)
        key = (threads, sizes)
        free = self._bindings.get(key)
        if free is None:
            while len(self._bindings) >= KEPT_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)))
            free = self._bindings[key] = []
        # A call that comes while another runs has memory of its own.
        try:
            binding = free.pop()
        except IndexError:
            binding = self._binding(sizes, threads)
        try:
            if binding.looked:
                return self._run(inputs, binding, threads)
            return self._look(inputs, binding, threads)
        finally:
            free.append(binding)


class Binding:
    """Where everything is, for one set of sizes."""

    def __init__(self, program: CpuProgram, sizes: Sequence[int], threads: int) -> None:
        plan = self.plan = program.plan
        self.looked = not any(
            isinstance(step, LibraryCall) and step.expected for step in plan.steps
        )
        self._local: dict[RowTiles, tuple[dict[Any, int], int]] = {}
        self.threads = threads
        self.known = {symbol: n for (symbol, _, _), n in zip(plan.symbols, sizes, strict=True)}
        self._sizes: dict[Size, int] = {}
        self.shapes = {s.number: self.ints(s.shape) for s in plan.slots if s.shape is not None}
        self.strides = {s.number: self.ints(s.strides) for s in plan.slots if s.shape is not None}
        self.numbers = {place: self._int(leaf.size) for place, leaf in enumerate(_numbers(plan))}
        places, total = self._arrange(plan)
        self.arena = self._memory(total + 64)
        start = -self.arena.data_ptr() % 64
        self.tensors: dict[int, Any] = {}
        for slot in plan.slots:
            if slot.kind is SlotKind.TEMPORARY:
                self.tensors[slot.number] = self._tensor(slot, start + places[slot.number])
        self._views(plan)
        self.pools = self._pools()
        addresses = {key: self.arena.data_ptr() + start + place for key, place in places.items()}
        addresses.update(
            (number, tensor.data_ptr())
            for number, tensor in self.tensors.items()
            if isinstance(tensor, torch.Tensor)
        )
        self.runs = [self._bound(program, run, addresses) for run in program.runs]

    def _memory(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=CPU)

    def _pools(self) -> dict[int, Pool]:
        return {
            slot.number: Pool(self.shapes[slot.number], self.strides[slot.number], slot.dtype)
            for slot in self.plan.slots
            if slot.kind is SlotKind.OUTPUT and slot.dtype is not None and _may_be_large(slot)
        }

    def _int(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in self._sizes:
            self._sizes[size] = int(symbols.evaluate(sympy.sympify(size), dict(self.known)))
        return self._sizes[size]

    def ints(self, values: Sequence[Size]) -> tuple[int, ...]:
        return tuple(map(self._int, values))

    def chunks(self, step: Launch | RowTiles) -> int:
        return max(1, min(self.threads, self._int(step.work) // GRAIN))

    def _arrange(self, plan: Plan) -> tuple[dict[Any, int], int]:
        """An offset for each temporary and each kernel's scratch memory, and the bytes in all."""
        last = _last_uses(plan)
        intervals: dict[Any, Interval] = {}
        for step, each in enumerate(plan.steps):
            written = [each.result] if isinstance(each, LibraryCall) else operands_of(each)
            for operand in written:
                if isinstance(operand, Scratch):
                    assert not isinstance(each, LibraryCall)
                    size = self._int(operand.count) * self.chunks(each) * operand.dtype.itemsize
                    since = intervals[operand].first if operand in intervals else step
                    intervals[operand] = Interval(since, step, size)
                    continue
                slot = plan.slots[operand]
                if slot.kind is SlotKind.TEMPORARY and operand not in intervals:
                    intervals[operand] = Interval(
                        step, last.get(operand, step), self.bytes_of(slot)
                    )
            if isinstance(each, RowTiles):
                intervals[each] = Interval(step, step, self.local_stride(each) * self.chunks(each))
        places, total = arrange(intervals)
        for each in plan.steps:
            if isinstance(each, RowTiles):
                for slot_number, offset in self.local_places(each)[0].items():
                    places[slot_number] = places[each] + offset
        return places, total

    def local_places(self, tiles: RowTiles) -> tuple[dict[Any, int], int]:
        """Where a thread keeps the values that only the rows at hand need, and their bytes."""
        if tiles not in self._local:
            self._local[tiles] = arrange(self._local_intervals(tiles, self.block(tiles)))
        return self._local[tiles]

    def local_stride(self, tiles: RowTiles) -> int:
        return self.local_places(tiles)[1]

    def _local_intervals(self, tiles: RowTiles, block: int) -> dict[int, Interval]:
        intervals: dict[int, Interval] = {}
        for place, each in enumerate(tiles.body):
            for operand in operands_of(each):
                if isinstance(operand, int) and self.plan.slots[operand].kind is SlotKind.LOCAL:
                    first = intervals[operand].first if operand in intervals else place
                    size = block * self.row_bytes(tiles, operand)
                    intervals[operand] = Interval(first, place, size)
        return intervals

    def bytes_of(self, slot: Slot) -> int:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        return _extent(shape, strides) * slot.dtype.itemsize

    def row_bytes(self, tiles: RowTiles, number: int) -> int:
        dtype = self.plan.slots[number].dtype
        assert dtype is not None
        return self._int(tiles.strides[number]) * dtype.itemsize

    def block(self, tiles: RowTiles) -> int:
        """How many rows to take at a time: what they touch should stay in the cache."""
        rows = self._int(tiles.rows)
        _, held = arrange(self._local_intervals(tiles, 1))
        for number in tiles.strides:
            if self.plan.slots[number].kind is not SlotKind.LOCAL:
                # It comes and goes once.
                held += self.row_bytes(tiles, number) // 2
        fitting = cache_bytes() * 3 // 4 // max(1, held) // ROW_STEP * ROW_STEP
        share = -(-rows // self.chunks(tiles))
        return max(1, min(max(LEAST_BLOCK, fitting), share))

    def _tensor(self, slot: Slot, offset: int) -> torch.Tensor:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        piece = self.arena[offset : offset + self.bytes_of(slot)].view(slot.dtype)
        return piece.as_strided(shape, strides)

    def _views(self, plan: Plan) -> None:
        """Views of tensors that stay where they are, made once."""
        for step in plan.steps:
            if isinstance(step, LibraryCall) and _is_fixed_view(step, self.tensors):
                args, kwargs = trees.map_leaves(self._value, (step.args, step.kwargs))
                self.tensors[step.result] = step.target(*args, **kwargs)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self.tensors[leaf.slot]
        return self._int(leaf.size) if isinstance(leaf, Number) else leaf

    def _bound(
        self, program: CpuProgram, run: Run, addresses: Mapping[Any, int]
    ) -> tuple[Any, ...]:
        """Memory for the arguments of each kernel of a run, filled in as far as is known."""
        table = np.zeros(len(run.entering) + 1, dtype=np.int64)
        words = Words()
        place_of = {slot: place for place, slot in enumerate(run.entering)}

        def address(operand: int | Scratch) -> int | Entering:
            if isinstance(operand, int) and operand in place_of:
                return Entering(place_of[operand])
            return addresses[operand]

        steps: list[Any] = []
        for _, step in run.steps:
            if isinstance(step, RowTiles):
                region = tile_region(self, program, step, address, words)
                steps += [tile_runner(), region]
            else:
                values = [address(operand) for operand in step.operands]
                values += [self.chunks(step), *self.ints(step.extents)]
                steps += self._entry(step, program.functions[step].address, values, words)
        count = len(run.steps)
        first = words.put(steps)
        memory, bindings = words.finish()
        places = np.array(bindings or [[0, 0]], dtype=np.int64)
        keep = (table, memory, places)
        base = memory.ctypes.data
        call = (
            places.ctypes.data,
            len(bindings),
            table.ctypes.data,
            base + 8 * first.word,
            count,
        )
        return memoryview(table.data), call, keep

    def _entry(self, step: Launch, code: int, values: Sequence[Word], words: Words) -> list[Word]:
        """What the native run takes for a kernel: its address, and its arguments."""
        return [code, words.put(values)]


# What stays where the binding has put it.
INNER = (SlotKind.TEMPORARY, SlotKind.LOCAL)


class Run:
    """Kernels that follow one another without a call between."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Launch | RowTiles]] = []
        self.entering: list[int] = []
        """Slots whose addresses differ from call to call."""


def _runs(plan: Plan) -> list[Run]:
    runs: list[Run] = []
    open_run: Run | None = None
    fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            if not _is_fixed_view(step, fixed):
                open_run = None
            else:
                fixed.add(step.result)
            continue
        if open_run is None:
            open_run = Run()
            runs.append(open_run)
        open_run.steps.append((place, step))
        for operand in operands_of(step):
            if not isinstance(operand, int) or operand in open_run.entering:
                continue
            if plan.slots[operand].kind not in INNER and operand not in fixed:
                open_run.entering.append(operand)
    return runs


def _is_fixed_view(step: LibraryCall, fixed: Any) -> bool:
    slots = [leaf.slot for leaf in trees.leaves((step.args, step.kwargs)) if _is_slot(leaf)]
    return step.is_view and all(slot in fixed for slot in slots)


def _is_slot(leaf: Any) -> bool:
    return isinstance(leaf, Argument)


def _numbers(plan: Plan) -> Iterator[Number]:
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            yield from _numbers_in(step)


def _numbers_in(step: LibraryCall) -> Iterator[Number]:
    for leaf in trees.leaves((step.args, step.kwargs)):
        if isinstance(leaf, Number):
            yield leaf


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements a tensor spans."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _may_be_large(slot: Slot) -> bool:
    """Too large, perhaps, for memory that the process has at hand."""
    assert slot.shape is not None
    assert slot.dtype is not None
    sizes = [size for size in slot.shape if isinstance(size, int)]
    known = len(sizes) == len(slot.shape)
    return not known or math.prod(sizes) * slot.dtype.itemsize >= LARGE


def _last_uses(plan: Plan) -> dict[int, int]:
    """For each slot, the last step that uses it, or anything that may share its memory."""
    last: dict[int, int] = {}
    sources: dict[int, list[int]] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            used = [leaf.slot for leaf in trees.leaves((step.args, step.kwargs)) if _is_slot(leaf)]
            if step.aliases:
                sources[step.result] = used
            work = [*used, step.result]
        else:
            work = [operand for operand in operands_of(step) if isinstance(operand, int)]
        while work:
            slot = work.pop()
            if last.get(slot) != place:
                last[slot] = place
                work += sources.get(slot, ())
    for leaf in trees.leaves(plan.outputs):
        if isinstance(leaf, Argument):
            last[leaf.slot] = len(plan.steps)
    return last


def fit(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The same values, laid out as kernels expect them."""
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


class Writer:
    """Writes the Python function of a plan."""

    parameters = "inputs, binding, threads"

    def __init__(self, plan: Plan, runs: Sequence[Run], looks: bool = False) -> None:
        self.plan = plan
        self.runs = runs
        self.looks = looks
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {
            "cpu": CPU,
            "empty_strided": torch.empty_strided,
            "fit": fit,
            "checked_call": checked_call,
            "native": runner(),
        }
        self.fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
        self.made: set[int] = set()
        self.count = 0

    def text(self) -> tuple[str, dict[str, Any]]:
        plan = self.plan
        last = _last_uses(plan)
        ends: dict[int, list[int]] = {}
        for slot, place in last.items():
            ends.setdefault(place, []).append(slot)
        names = ", ".join(f"s{slot}" for slot in plan.inputs)
        self.lines += [f"def run({self.parameters}):"]
        if names:
            self.line(f"{names}, = inputs")
        self.line("inputs.clear()")
        self.line("tensors, runs, pools = binding.tensors, binding.runs, binding.pools")
        read = {operand for run in self.runs for operand in run.entering}
        read |= {
            leaf.slot
            for step in plan.steps
            if isinstance(step, LibraryCall) and step.reads_layout
            for leaf in trees.leaves((step.args, step.kwargs))
            if _is_slot(leaf) and plan.slots[leaf.slot].shape is not None
        }
        for slot in plan.inputs:
            if slot in read:
                self.fitted(slot)
        number = 0
        first_of = {run.steps[0][0]: place for place, run in enumerate(self.runs)}
        for place, step in enumerate(plan.steps):
            if isinstance(step, LibraryCall):
                self.invoke(step, number, read)
                number += len(list(_numbers_in(step)))
            elif place in first_of:
                self.run(first_of[place])
            for slot in ends.get(place, ()):
                if slot not in self.fixed and plan.slots[slot].kind not in INNER:
                    self.line(f"s{slot} = None")
        returned = self.tree(plan.outputs)
        self.line(f"return {returned}")
        return "\n".join(self.lines) + "\n", self.constants

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def constant(self, value: Any, name: str) -> str:
        self.count += 1
        full = f"{name}_{self.count}"
        self.constants[full] = value
        return full

    def fitted(self, slot: int) -> None:
        strides = self.sizes("strides", slot)
        self.line(f"if s{slot}.stride() != {strides} or {self.is_unreadable(f's{slot}')}:")
        self.line(f"    s{slot} = fit(s{slot}, {self.sizes('shapes', slot)}, {strides})")

    def is_unreadable(self, name: str) -> str:
        # A tensor negated when it is next read has other data; one that is all zeros may have none.
        return f"{name}.is_neg() or not {name}.data_ptr()"

    def sizes(self, what: str, slot: int) -> str:
        held = self.plan.slots[slot]
        values = held.shape if what == "shapes" else held.strides
        if all(isinstance(value, int) for value in values or ()):
            return repr(tuple(values or ()))
        return f"binding.{what}[{slot}]"

    def allocated(self, slot: int) -> None:
        if self.plan.slots[slot].kind is SlotKind.OUTPUT and slot not in self.made:
            self.made.add(slot)
            dtype = self.constant(self.plan.slots[slot].dtype, "dtype")
            shape, strides = self.sizes("shapes", slot), self.sizes("strides", slot)
            self.line(f"s{slot} = {self.new(slot, shape, strides, dtype)}")

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        """Memory for a result."""
        if _may_be_large(self.plan.slots[slot]):
            return f"pools[{slot}].take()"
        return f"empty_strided({shape}, {strides}, dtype={dtype}, device=cpu)"

    def run(self, place: int) -> None:
        run = self.runs[place]
        for slot in run.entering:
            self.allocated(slot)
        pack = self.constant(struct.Struct(f"{len(run.entering)}q").pack_into, "pack")
        self.line(f"table, call, _ = runs[{place}]")
        if run.entering:
            addresses = ", ".join(f"s{slot}.data_ptr()" for slot in run.entering)
            self.line(f"{pack}(table, 0, {addresses})")
        self.enter()

    def enter(self) -> None:
        self.line("native(*call, threads)")

    def invoke(self, step: LibraryCall, number: int, read: set[int]) -> None:
        if _is_fixed_view(step, self.fixed):
            self.fixed.add(step.result)
            return
        self.allocated(step.result)
        self.number = number
        args = [self.tree(arg) for arg in step.args]
        args += [f"{name}={self.tree(value)}" for name, value in step.kwargs.items()]
        name = getattr(step.target, "__name__", "call").replace(".", "_")
        target = self.constant(step.target, name if name.isidentifier() else "call")
        if step.writes:
            self.line(f"{target}({', '.join([*args, f'out={self.value(step.result)}'])})")
            return
        called = f"{target}({', '.join(args)})"
        if self.looks and step.expected:
            named = f"dict({', '.join(args[len(step.args) :])})"
            given = f"({''.join(f'{arg}, ' for arg in args[: len(step.args)])}), {named}"
            called = f"checked_call({self.constant(step, 'step')}, binding, {target}, {given})"
        self.line(f"s{step.result} = {called}")
        if step.result in read and self.plan.slots[step.result].shape is not None:
            self.fitted(step.result)

    def value(self, slot: int) -> str:
        return f"tensors[{slot}]" if slot in self.fixed else f"s{slot}"

    def tree(self, tree: Any) -> str:
        match tree:
            case Argument(slot):
                return self.value(slot)
            case Number():
                self.number += 1
                return f"binding.numbers[{self.number - 1}]"
            case tuple():
                return f"({''.join(f'{self.tree(each)}, ' for each in tree)})"
            case list():
                return f"[{', '.join(self.tree(each) for each in tree)}]"
            case dict():
                return f"{{{', '.join(f'{key!r}: {self.tree(v)}' for key, v in tree.items())}}}"
            case slice():
                ends = [self.tree(each) for each in (tree.start, tree.stop, tree.step)]
                return f"slice({', '.join(ends)})"
            case None | bool() | int() | str():
                return repr(tree)
            case _:
                return self.constant(tree, "value")
