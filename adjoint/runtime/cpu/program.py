"""A plan as one Python function: native runs of kernels, with calls of operators between them.

Where tensors of the program lie is decided once for each set of input sizes, a *binding*: memory
for what lives inside the program, addresses and extents for each kernel.  A call then fills in the
addresses of its own inputs and outputs, and enters each run of kernels by one native call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch

from adjoint.loops.plan import Argument, Invoke, Kind, Launch, Number, Plan, Scratch, Size, Slot
from adjoint.runtime.cpu.engine import runner
from adjoint.runtime.cpu.memory import Interval, arrange
from adjoint.torch_private import symbols, trees

# A chunk of rows has at least so many elements, or starting a thread would take longer than it.
GRAIN = 8192

# Bindings kept for input sizes seen lately: each holds the memory of the program's inner tensors.
KEPT_BINDINGS = 2


class CpuProgram:
    """Runs a plan.  Takes its inputs out of the list that it is given."""

    def __init__(self, plan: Plan, addresses: Mapping[Launch, int]) -> None:
        self.plan = plan
        self.addresses = addresses
        self.runs = _runs(plan)
        self.source, constants = _Writer(plan, self.runs).text()
        namespace: dict[str, Any] = {**constants}
        exec(
            compile(self.source, f"<adjoint program of {len(plan.steps)} steps>", "exec"), namespace
        )
        self._run: Callable[..., Any] = namespace["run"]
        self._bindings: dict[Any, list[Binding]] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        threads = torch.get_num_threads()
        sizes = tuple(
            inputs[place] if dim < 0 else inputs[place].shape[dim]
            for _, place, dim in self.plan.symbols
        )
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
            binding = Binding(self, sizes, threads)
        try:
            return self._run(inputs, binding, threads)
        finally:
            free.append(binding)


class Binding:
    """Where everything is, for one set of sizes."""

    def __init__(self, program: CpuProgram, sizes: Sequence[int], threads: int) -> None:
        plan = program.plan
        self.threads = threads
        self.known = {symbol: n for (symbol, _, _), n in zip(plan.symbols, sizes, strict=True)}
        self.shapes = {s.number: self._ints(s.shape) for s in plan.slots if s.shape is not None}
        self.strides = {s.number: self._ints(s.strides) for s in plan.slots if s.shape is not None}
        self.numbers = {place: self._int(leaf.size) for place, leaf in enumerate(_numbers(plan))}
        places, total = self._arrange(plan)
        self.arena = torch.empty(total + 64, dtype=torch.uint8)
        start = -self.arena.data_ptr() % 64
        self.tensors: dict[int, Any] = {}
        for slot in plan.slots:
            if slot.kind is Kind.TEMPORARY:
                self.tensors[slot.number] = self._tensor(slot, start + places[slot.number])
        self._views(plan)
        addresses = {key: self.arena.data_ptr() + start + place for key, place in places.items()}
        self.runs = [self._bound(program, run, addresses) for run in program.runs]

    def _int(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        return int(symbols.evaluate(sympy.sympify(size), dict(self.known)))

    def _ints(self, values: Sequence[Size]) -> tuple[int, ...]:
        return tuple(map(self._int, values))

    def chunks(self, launch: Launch) -> int:
        return max(1, min(self.threads, self._int(launch.work) // GRAIN))

    def _arrange(self, plan: Plan) -> tuple[dict[Any, int], int]:
        """An offset for each temporary and each kernel's scratch memory, and the bytes in all."""
        last = _last_uses(plan)
        intervals: dict[Any, Interval] = {}
        for step, each in enumerate(plan.steps):
            written = [each.result] if isinstance(each, Invoke) else list(each.operands)
            for operand in written:
                if isinstance(operand, Scratch):
                    assert isinstance(each, Launch)
                    count = self._int(operand.count) * self.chunks(each)
                    size = count * operand.dtype.itemsize
                    intervals[step, operand] = Interval(step, step, size)
                    continue
                slot = plan.slots[operand]
                if slot.kind is Kind.TEMPORARY and operand not in intervals:
                    assert slot.dtype is not None
                    extent = _extent(self.shapes[operand], self.strides[operand])
                    size = extent * slot.dtype.itemsize
                    intervals[operand] = Interval(step, last.get(operand, step), size)
        return arrange(intervals)

    def _tensor(self, slot: Slot, offset: int) -> torch.Tensor:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        size = _extent(shape, strides) * slot.dtype.itemsize
        piece = self.arena[offset : offset + size].view(slot.dtype)
        return piece.as_strided(shape, strides)

    def _views(self, plan: Plan) -> None:
        """Views of tensors that stay where they are, made once."""
        for step in plan.steps:
            if isinstance(step, Invoke) and _is_fixed_view(step, self.tensors):
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
        values: list[int] = []
        bindings: list[tuple[int, int]] = []
        starts: list[int] = []
        place_of = {slot: place for place, slot in enumerate(run.entering)}
        for step, launch in run.launches:
            starts.append(len(values))
            for operand in launch.operands:
                if isinstance(operand, Scratch):
                    values.append(addresses[step, operand])
                elif operand in place_of:
                    bindings.append((len(values), place_of[operand]))
                    values.append(0)
                else:
                    values.append(addresses[operand])
            values += [self.chunks(launch), *self._ints(launch.extents)]
        arguments = np.array([*values, 0], dtype=np.int64)
        base = arguments.ctypes.data
        places = np.array(
            [[base + 8 * place, slot] for place, slot in bindings] or [[0, 0]], dtype=np.int64
        )
        steps = np.array(
            [
                [program.addresses[launch], base + 8 * start]
                for (_, launch), start in zip(run.launches, starts, strict=True)
            ],
            dtype=np.int64,
        )
        keep = (table, arguments, places, steps)
        call = (places.ctypes.data, len(bindings), table.ctypes.data, steps.ctypes.data, len(steps))
        return table.data, call, keep


class Run:
    """Kernels that follow one another without a call between."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, Launch]] = []
        self.entering: list[int] = []
        """Slots whose addresses differ from call to call."""


def _runs(plan: Plan) -> list[Run]:
    runs: list[Run] = []
    open_run: Run | None = None
    fixed = {slot.number for slot in plan.slots if slot.kind is Kind.TEMPORARY}
    for place, step in enumerate(plan.steps):
        if isinstance(step, Invoke):
            if not _is_fixed_view(step, fixed):
                open_run = None
            else:
                fixed.add(step.result)
            continue
        if open_run is None:
            open_run = Run()
            runs.append(open_run)
        open_run.launches.append((place, step))
        for operand in step.operands:
            if not isinstance(operand, int) or operand in open_run.entering:
                continue
            if plan.slots[operand].kind is not Kind.TEMPORARY:
                open_run.entering.append(operand)
    return runs


def _is_fixed_view(step: Invoke, fixed: Any) -> bool:
    slots = [leaf.slot for leaf in trees.leaves((step.args, step.kwargs)) if _is_slot(leaf)]
    return step.is_view and all(slot in fixed for slot in slots)


def _is_slot(leaf: Any) -> bool:
    return isinstance(leaf, Argument)


def _numbers(plan: Plan) -> Iterator[Number]:
    for step in plan.steps:
        if isinstance(step, Invoke):
            yield from _numbers_in(step)


def _numbers_in(step: Invoke) -> Iterator[Number]:
    for leaf in trees.leaves((step.args, step.kwargs)):
        if isinstance(leaf, Number):
            yield leaf


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements a tensor spans."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _last_uses(plan: Plan) -> dict[int, int]:
    """For each slot, the last step that uses it, or anything that may share its memory."""
    last: dict[int, int] = {}
    sources: dict[int, list[int]] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step, Invoke):
            used = [leaf.slot for leaf in trees.leaves((step.args, step.kwargs)) if _is_slot(leaf)]
            if step.aliases:
                sources[step.result] = list(used)
            used.append(step.result)
        else:
            used = [operand for operand in step.operands if isinstance(operand, int)]
        work = used
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


class _Writer:
    """Writes the Python function of a plan."""

    def __init__(self, plan: Plan, runs: Sequence[Run]) -> None:
        self.plan = plan
        self.runs = runs
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {
            "empty_strided": torch.empty_strided,
            "fit": fit,
            "native": runner(),
        }
        self.fixed = {slot.number for slot in plan.slots if slot.kind is Kind.TEMPORARY}
        self.made: set[int] = set()
        self.count = 0

    def text(self) -> tuple[str, dict[str, Any]]:
        plan = self.plan
        last = _last_uses(plan)
        ends: dict[int, list[int]] = {}
        for slot, place in last.items():
            ends.setdefault(place, []).append(slot)
        names = ", ".join(f"s{slot}" for slot in plan.inputs)
        self.lines += ["def run(inputs, binding, threads):"]
        if names:
            self.line(f"{names}, = inputs")
        self.line("inputs.clear()")
        self.line("tensors, runs = binding.tensors, binding.runs")
        read = {operand for run in self.runs for operand in run.entering}
        for slot in plan.inputs:
            if slot in read:
                self.fitted(slot)
        number = 0
        first_of = {run.launches[0][0]: place for place, run in enumerate(self.runs)}
        for place, step in enumerate(plan.steps):
            if isinstance(step, Invoke):
                self.invoke(step, number, read)
                number += len(list(_numbers_in(step)))
            elif place in first_of:
                self.run(first_of[place])
            for slot in ends.get(place, ()):
                if slot not in self.fixed and plan.slots[slot].kind is not Kind.TEMPORARY:
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
        self.line(f"if s{slot}.stride() != {strides}:")
        self.line(f"    s{slot} = fit(s{slot}, {self.sizes('shapes', slot)}, {strides})")

    def sizes(self, what: str, slot: int) -> str:
        held = self.plan.slots[slot]
        values = held.shape if what == "shapes" else held.strides
        if all(isinstance(value, int) for value in values or ()):
            return repr(tuple(values or ()))
        return f"binding.{what}[{slot}]"

    def allocated(self, slot: int) -> None:
        if self.plan.slots[slot].kind is Kind.OUTPUT and slot not in self.made:
            self.made.add(slot)
            dtype = self.constant(self.plan.slots[slot].dtype, "dtype")
            shape, strides = self.sizes("shapes", slot), self.sizes("strides", slot)
            self.line(f"s{slot} = empty_strided({shape}, {strides}, dtype={dtype})")

    def run(self, place: int) -> None:
        run = self.runs[place]
        for slot in run.entering:
            self.allocated(slot)
        pack = self.constant(struct.Struct(f"{len(run.entering)}q").pack_into, "pack")
        self.line(f"table, call, _ = runs[{place}]")
        if run.entering:
            addresses = ", ".join(f"s{slot}.data_ptr()" for slot in run.entering)
            self.line(f"{pack}(table, 0, {addresses})")
        self.line("native(*call, threads)")

    def invoke(self, step: Invoke, number: int, read: set[int]) -> None:
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
        self.line(f"s{step.result} = {target}({', '.join(args)})")
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
