"""A binding: where everything is, for one set of input sizes.

Memory for what lives inside the program is arranged once; views of it are made once.  Native
programs also fix addresses and extents of each kernel, so that a call only fills in the addresses
of its own inputs and outputs.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

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
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.memory import ALIGNMENT, Entering, Interval, Word, Words, arrange
from adjoint.runtime.plans.runs import Run, is_fixed_view, last_uses, numbers_of
from adjoint.torch_private import symbols, trees

Addresses: TypeAlias = "Callable[[int | Scratch], int | Entering]"


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


class Binding(ABC):
    """Sizes, and memory for the tensors that live inside the program."""

    def __init__(self, plan: Plan, sizes: Sequence[int]) -> None:
        self.plan = plan
        self.looked = not any(
            isinstance(step, LibraryCall) and step.expected for step in plan.steps
        )
        """What operators return need not be looked at (any more)."""
        self.known = {symbol: n for (symbol, _, _), n in zip(plan.symbols, sizes, strict=True)}
        self._sizes: dict[Size, int] = {}
        self.shapes = {s.number: self.ints(s.shape) for s in plan.slots if s.shape is not None}
        self.strides = {s.number: self.ints(s.strides) for s in plan.slots if s.shape is not None}
        self.numbers = {place: self.size(leaf.size) for place, leaf in enumerate(numbers_of(plan))}
        self.places, total = self._arrange()
        """Where each temporary and each kernel's scratch memory begins, in bytes."""
        self.arena = self._memory(total + ALIGNMENT)
        self.start = -self.arena.data_ptr() % ALIGNMENT
        self.tensors: dict[int, Any] = {}
        for slot in plan.slots:
            if slot.kind is SlotKind.TEMPORARY:
                self.tensors[slot.number] = self._tensor(slot)
        self._views()

    @abstractmethod
    def chunks(self, step: Launch | RowTiles) -> int:
        """Parts into which the rows of a step are divided."""

    @abstractmethod
    def _memory(self, count: int) -> torch.Tensor:
        """So many bytes."""

    def size(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in self._sizes:
            self._sizes[size] = int(symbols.evaluate(sympy.sympify(size), dict(self.known)))
        return self._sizes[size]

    def ints(self, values: Sequence[Size]) -> tuple[int, ...]:
        return tuple(map(self.size, values))

    def bytes_of(self, slot: Slot) -> int:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        return extent_of(shape, strides) * slot.dtype.itemsize

    def _arrange(self) -> tuple[dict[Any, int], int]:
        """An offset for each temporary and each kernel's scratch memory, and the bytes in all."""
        return arrange(self._intervals())

    def _intervals(self) -> dict[Any, Interval]:
        last = last_uses(self.plan)
        intervals: dict[Any, Interval] = {}
        for step, each in enumerate(self.plan.steps):
            written = [each.result] if isinstance(each, LibraryCall) else operands_of(each)
            for operand in written:
                if isinstance(operand, Scratch):
                    assert not isinstance(each, LibraryCall)
                    size = self.size(operand.count) * self.chunks(each) * operand.dtype.itemsize
                    since = intervals[operand].first if operand in intervals else step
                    intervals[operand] = Interval(since, step, size)
                    continue
                slot = self.plan.slots[operand]
                if slot.kind is SlotKind.TEMPORARY and operand not in intervals:
                    intervals[operand] = Interval(
                        step, last.get(operand, step), self.bytes_of(slot)
                    )
        return intervals

    def _tensor(self, slot: Slot) -> torch.Tensor:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        offset = self.start + self.places[slot.number]
        piece = self.arena[offset : offset + self.bytes_of(slot)].view(slot.dtype)
        return piece.as_strided(shape, strides)

    def _views(self) -> None:
        """Views of tensors that stay where they are, made once."""
        for step in self.plan.steps:
            if isinstance(step, LibraryCall) and is_fixed_view(step, self.tensors):
                args, kwargs = trees.map_leaves(self._value, (step.args, step.kwargs))
                self.tensors[step.result] = step.target(*args, **kwargs)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self.tensors[leaf.slot]
        return self.size(leaf.size) if isinstance(leaf, Number) else leaf


class NativeBinding(Binding):
    """Also the arguments of each native kernel, in memory that a call completes."""

    def __init__(
        self,
        plan: Plan,
        runs: Sequence[Run],
        functions: Mapping[Launch, NativeFunction],
        sizes: Sequence[int],
    ) -> None:
        super().__init__(plan, sizes)
        self.functions = functions
        base = self.arena.data_ptr() + self.start
        addresses = {key: base + place for key, place in self.places.items()}
        addresses.update(
            (number, tensor.data_ptr())
            for number, tensor in self.tensors.items()
            if isinstance(tensor, torch.Tensor)
        )
        self.runs = [self._bound(run, addresses) for run in runs]

    @abstractmethod
    def _entry(self, step: Launch | RowTiles, address: Addresses, words: Words) -> list[Word]:
        """What the native run of kernels takes for a step."""

    def _arguments(self, step: Launch, address: Addresses) -> list[Word]:
        """What a kernel takes: its buffers, the number of chunks, its extents."""
        buffers = [address(operand) for operand in step.operands]
        return [*buffers, self.chunks(step), *self.ints(step.extents)]

    def _bound(self, run: Run, addresses: Mapping[Any, int]) -> tuple[Any, ...]:
        """Memory for the arguments of each kernel of a run, filled in as far as is known."""
        table = np.zeros(len(run.entering) + 1, dtype=np.int64)
        words = Words()
        place_of = {slot: place for place, slot in enumerate(run.entering)}

        def address(operand: int | Scratch) -> int | Entering:
            if isinstance(operand, int) and operand in place_of:
                return Entering(place_of[operand])
            return addresses[operand]

        steps: list[Word] = []
        for _, step in run.steps:
            steps += self._entry(step, address, words)
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


def extent_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements a tensor spans."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
