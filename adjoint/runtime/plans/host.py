"""What the host computes for a call of a plan, as host code: a function of sizes and addresses.

Sizes of slots, the layout of temporaries and, for native programs, the argument block of every
kernel.  Recorded once for a program; each binding executes it on words of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from adjoint.loops.plan import (
    Launch,
    LibraryCall,
    NativeStep,
    Plan,
    Scratch,
    Size,
    Slot,
    SlotKind,
    operands_of,
)
from adjoint.loops.runs import Run, is_fixed_view, last_uses, numbers_of, read_by_kernels
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.callables import misfit_finder, takes_tensors
from adjoint.runtime.plans.hostcode import CallAddress, HostCode, Value, Word
from adjoint.runtime.plans.interpreter import interpreter
from adjoint.runtime.plans.layout import ALIGNMENT_BYTES

Addresses: TypeAlias = Callable[["int | Scratch"], "Value | CallAddress"]


class Host(ABC):
    """The sizes of a plan, and the layout of its temporaries."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.code = HostCode()
        # These come first, so that a binding sets them with one store.
        self.symbols = [self.code.variable(symbol) for symbol, _, _ in plan.symbols]
        self.threads = self.code.variable()
        """How many threads a call may use."""
        self.base = self.code.variable()
        """The address of the memory for temporaries."""
        slots = [slot for slot in plan.slots if slot.shape is not None]
        self.shapes = {slot.number: self.code.sizes(slot.shape or ()) for slot in slots}
        self.strides = {slot.number: self.code.sizes(slot.strides) for slot in slots}
        self.numbers = [self.code.size(leaf.size) for leaf in numbers_of(plan)]
        self.offsets, self.total = self._lay_out()
        """The offset of each temporary and each kernel's scratch memory, and the bytes of all."""
        self.sizes_end = len(self.code.instructions)
        """The number of instructions that depend on no address; they come first."""

    @abstractmethod
    def chunks(self, step: NativeStep) -> Value:
        """The number of chunks into which the rows of a step are divided."""

    def size(self, size: Size) -> Value:
        return self.code.size(size)

    def bytes_of(self, slot: Slot) -> Value:
        """The bytes from the first element of a slot to its last, both included."""
        assert slot.dtype is not None
        count, nonempty = self.code.constant(1), self.code.constant(1)
        for size, stride in zip(self.shapes[slot.number], self.strides[slot.number], strict=True):
            count = count + (size - 1) * stride
            nonempty = nonempty * size.at_most(1)
        return count * nonempty * slot.dtype.itemsize

    def _lay_out(self) -> tuple[dict[object, Value], Value]:
        lifetimes = self._lifetimes()
        offsets, total = self.code.layout(list(lifetimes.values()), ALIGNMENT_BYTES)
        return dict(zip(lifetimes, offsets, strict=True)), total

    def _lifetimes(self) -> dict[object, tuple[int, int, Value]]:
        """First step, last step and bytes of each temporary and each kernel's scratch memory."""
        last = last_uses(self.plan)
        lifetimes: dict[object, tuple[int, int, Value]] = {}
        for position, step in enumerate(self.plan.steps):
            written = [step.result] if isinstance(step, LibraryCall) else operands_of(step)
            for operand in written:
                if isinstance(operand, Scratch):
                    assert not isinstance(step, LibraryCall)
                    count = self.size(operand.count) * self.chunks(step)
                    first = lifetimes[operand][0] if operand in lifetimes else position
                    lifetimes[operand] = (first, position, count * operand.dtype.itemsize)
                    continue
                slot = self.plan.slots[operand]
                if slot.kind is SlotKind.TEMPORARY and operand not in lifetimes:
                    end = last.get(operand, position)
                    lifetimes[operand] = (position, end, self.bytes_of(slot))
        return lifetimes


@dataclass(frozen=True)
class HostRun:
    """Where the words of a run of kernels are."""

    call_slots: int
    """How many addresses a call brings."""
    call_addresses: list[tuple[int, int]]
    """The words that these are stored in, and which of them."""
    first: int
    """The first word of the list of steps that the native runner executes."""
    steps: int


class NativeHost(Host):
    """Also the argument blocks of native kernels, which a call completes with its addresses."""

    input_alignment = 1
    """The bytes that the address of an input has to be a multiple of."""

    def __init__(
        self, plan: Plan, runs: Sequence[Run], functions: Mapping[Launch, NativeFunction]
    ) -> None:
        super().__init__(plan)
        # Loaded now, when the store of the compilation is at hand.
        interpreter()
        if takes_tensors():
            misfit_finder()
        read = read_by_kernels(plan, runs)
        self.read_inputs = [slot for slot in plan.inputs if slot in read]
        """Inputs that have to have the expected strides, in the order of `expected`."""
        self.expected = self.code.put(self._expected()).index
        """The first word of what is expected of them (`MISFITS_TEXT`)."""
        self.functions = functions
        self._addresses: dict[object, Value] = {}
        for key, offset in self.offsets.items():
            self._addresses[key] = self.base + offset
        self.views: dict[int, Value] = {}
        """The addresses of views of temporaries, which torch makes."""
        fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
        for step in plan.steps:
            if isinstance(step, LibraryCall) and is_fixed_view(step, fixed):
                fixed.add(step.result)
                self.views[step.result] = self._addresses[step.result] = self.code.variable()
        self.runs = [self._run(run) for run in runs]

    @abstractmethod
    def _entry(self, step: NativeStep, address: Addresses) -> list[Word]:
        """The words of a step in the list that the native runner executes."""

    def _expected(self) -> list[Word]:
        words: list[Word] = []
        for slot in self.read_inputs:
            words += [self.input_alignment - 1, len(self.strides[slot]), *self.strides[slot]]
        return words

    def arguments(self, step: Launch, address: Addresses) -> list[Word]:
        """The arguments of a kernel: buffers, number of chunks, extents."""
        buffers = [address(operand) for operand in step.operands]
        return [*buffers, self.chunks(step), *self.code.sizes(step.extents)]

    def _run(self, run: Run) -> HostRun:
        index_of = {slot: index for index, slot in enumerate(run.call_slots)}

        def address(operand: int | Scratch) -> Value | CallAddress:
            if isinstance(operand, int) and operand in index_of:
                return CallAddress(index_of[operand])
            return self._addresses[operand]

        before = len(self.code.call_addresses)
        steps: list[Word] = []
        for _, step in run.steps:
            steps += self._entry(step, address)
        first = self.code.put(steps)
        bound = self.code.call_addresses[before:]
        return HostRun(len(run.call_slots), bound, first.index, len(run.steps))
