"""A binding: a program for one set of input sizes.

It owns the memory of the program's temporaries, and the views of them.  The bindings of native
programs also hold the arguments of each kernel, in which a call only has to store the addresses of
its own inputs and outputs.
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
from adjoint.runtime.cpu.memory import ALIGNMENT, CallAddress, Lifetime, Word, Words, assign_offsets
from adjoint.runtime.plans.runs import Run, is_fixed_view, last_uses, numbers_of
from adjoint.torch_private import symbols, trees

Addresses: TypeAlias = "Callable[[int | Scratch], int | CallAddress]"


class BindingFailed(Exception):
    """No binding could be made for some sizes; `__cause__` says why.  Nothing has run."""


@contextlib.contextmanager
def binding_failures() -> Iterator[None]:
    """Raise `BindingFailed` for any failure inside."""
    try:
        yield
    except Exception as error:
        if passes_through(error):
            raise
        raise BindingFailed from error


class Binding(ABC):
    """The values of all sizes, and memory for the program's temporaries."""

    def __init__(self, plan: Plan, sizes: Sequence[int]) -> None:
        self.plan = plan
        self.is_checked = not any(
            isinstance(step, LibraryCall) and step.expected for step in plan.steps
        )
        """The results of library calls need no check (any more)."""
        self.known = {symbol: n for (symbol, _, _), n in zip(plan.symbols, sizes, strict=True)}
        self._sizes: dict[Size, int] = {}
        self.shapes = {s.number: self.ints(s.shape) for s in plan.slots if s.shape is not None}
        self.strides = {s.number: self.ints(s.strides) for s in plan.slots if s.shape is not None}
        self.numbers = {index: self.size(leaf.size) for index, leaf in enumerate(numbers_of(plan))}
        self.offsets, total = self._assign_offsets()
        """The offset of each temporary and each kernel's scratch memory in the arena, in bytes."""
        self.arena = self._memory(total + ALIGNMENT)
        self.start = -self.arena.data_ptr() % ALIGNMENT
        self.tensors: dict[int, Any] = {}
        for slot in plan.slots:
            if slot.kind is SlotKind.TEMPORARY:
                self.tensors[slot.number] = self._tensor(slot)
        self._views()

    @abstractmethod
    def chunks(self, step: Launch | RowTiles) -> int:
        """The number of chunks into which the rows of a step are divided."""

    @abstractmethod
    def _memory(self, count: int) -> torch.Tensor:
        """`count` bytes for temporaries."""

    def size(self, size: Size) -> int:
        """The value of a size."""
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
        return span_of(shape, strides) * slot.dtype.itemsize

    def _assign_offsets(self) -> tuple[dict[Any, int], int]:
        """The offset of each temporary and each kernel's scratch memory, and the total bytes."""
        return assign_offsets(self._lifetimes())

    def _lifetimes(self) -> dict[Any, Lifetime]:
        last = last_uses(self.plan)
        lifetimes: dict[Any, Lifetime] = {}
        for position, step in enumerate(self.plan.steps):
            written = [step.result] if isinstance(step, LibraryCall) else operands_of(step)
            for operand in written:
                if isinstance(operand, Scratch):
                    assert not isinstance(step, LibraryCall)
                    size = self.size(operand.count) * self.chunks(step) * operand.dtype.itemsize
                    first = lifetimes[operand].first if operand in lifetimes else position
                    lifetimes[operand] = Lifetime(first, position, size)
                    continue
                slot = self.plan.slots[operand]
                if slot.kind is SlotKind.TEMPORARY and operand not in lifetimes:
                    lifetimes[operand] = Lifetime(
                        position, last.get(operand, position), self.bytes_of(slot)
                    )
        return lifetimes

    def _tensor(self, slot: Slot) -> torch.Tensor:
        assert slot.dtype is not None
        shape, strides = self.shapes[slot.number], self.strides[slot.number]
        offset = self.start + self.offsets[slot.number]
        piece = self.arena[offset : offset + self.bytes_of(slot)].view(slot.dtype)
        return piece.as_strided(shape, strides)

    def _views(self) -> None:
        """Make the views of temporaries, which are the same in every call."""
        for step in self.plan.steps:
            if isinstance(step, LibraryCall) and is_fixed_view(step, self.tensors):
                args, kwargs = trees.map_leaves(self._value, (step.args, step.kwargs))
                self.tensors[step.result] = step.target(*args, **kwargs)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Argument):
            return self.tensors[leaf.slot]
        return self.size(leaf.size) if isinstance(leaf, Number) else leaf


class NativeBinding(Binding):
    """Also the argument blocks of native kernels, which a call completes with its addresses."""

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
        addresses = {key: base + offset for key, offset in self.offsets.items()}
        addresses.update(
            (number, tensor.data_ptr())
            for number, tensor in self.tensors.items()
            if isinstance(tensor, torch.Tensor)
        )
        self.runs = [self._bound(run, addresses) for run in runs]

    @abstractmethod
    def _entry(self, step: Launch | RowTiles, address: Addresses, words: Words) -> list[Word]:
        """The words of a step in the list that the native runner executes."""

    def _arguments(self, step: Launch, address: Addresses) -> list[Word]:
        """The arguments of a kernel: buffers, number of chunks, extents."""
        buffers = [address(operand) for operand in step.operands]
        return [*buffers, self.chunks(step), *self.ints(step.extents)]

    def _bound(self, run: Run, addresses: Mapping[Any, int]) -> tuple[Any, ...]:
        """A run's address table, the arguments of the native call, and what these point to."""
        table = np.zeros(len(run.call_slots) + 1, dtype=np.int64)
        words = Words()
        index_of = {slot: index for index, slot in enumerate(run.call_slots)}

        def address(operand: int | Scratch) -> int | CallAddress:
            if isinstance(operand, int) and operand in index_of:
                return CallAddress(index_of[operand])
            return addresses[operand]

        steps: list[Word] = []
        for _, step in run.steps:
            steps += self._entry(step, address, words)
        count = len(run.steps)
        first = words.put(steps)
        memory, bindings = words.finish()
        stores = np.array(bindings or [[0, 0]], dtype=np.int64)
        keep = (table, memory, stores)
        base = memory.ctypes.data
        call = (
            stores.ctypes.data,
            len(bindings),
            table.ctypes.data,
            base + 8 * first.index,
            count,
        )
        return memoryview(table.data), call, keep


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last of a tensor in memory, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
