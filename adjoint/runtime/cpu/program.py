"""A plan on the processor: native runs of kernels, with calls of operators between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from adjoint.loops.plan import Launch, Plan, RowTiles, Slot, SlotKind, operands_of
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import runner
from adjoint.runtime.cpu.memory import (
    Interval,
    Pool,
    Word,
    Words,
    arrange,
    cache_bytes,
    keep_freed_memory,
    share,
)
from adjoint.runtime.cpu.tiles import tile_region, tile_runner
from adjoint.runtime.plans.binding import Addresses, NativeBinding, binding_failures
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.runs import Run
from adjoint.runtime.plans.writing import NativeWriter
from adjoint.target import CPU

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


class CpuProgram(PlanProgram):
    def __init__(self, plan: Plan, functions: Mapping[Launch, NativeFunction]) -> None:
        keep_freed_memory()
        super().__init__(plan, CPU)
        self._share = share()
        self.functions = functions
        """The code of each kernel, which is there as long as the program is."""
        self._bindings: dict[Any, list[CpuBinding]] = {}

    def _writer(self, looks: bool = False) -> CpuWriter:
        return CpuWriter(self.plan, self.runs, looks)

    def _binding(self, sizes: Sequence[int], threads: int) -> CpuBinding:
        with binding_failures():
            return CpuBinding(self.plan, self.runs, self.functions, sizes, threads)

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


class CpuBinding(NativeBinding):
    def __init__(
        self,
        plan: Plan,
        runs: Sequence[Run],
        functions: Mapping[Launch, NativeFunction],
        sizes: Sequence[int],
        threads: int,
    ) -> None:
        self.threads = threads
        self._local: dict[RowTiles, tuple[dict[Any, int], int]] = {}
        super().__init__(plan, runs, functions, sizes)
        self.pools = {
            slot.number: Pool(self.shapes[slot.number], self.strides[slot.number], slot.dtype)
            for slot in plan.slots
            if slot.kind is SlotKind.OUTPUT and slot.dtype is not None and _may_be_large(slot)
        }

    def _memory(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=CPU)

    def chunks(self, step: Launch | RowTiles) -> int:
        return max(1, min(self.threads, self.size(step.work) // GRAIN))

    def _entry(self, step: Launch | RowTiles, address: Addresses, words: Words) -> list[Word]:
        """The address of the function, and of its arguments."""
        if isinstance(step, RowTiles):
            return [tile_runner(), tile_region(self, step, address, words)]
        return [self.functions[step].address, words.put(self._arguments(step, address))]

    # Row tiles

    def _tiles(self) -> list[tuple[int, RowTiles]]:
        steps = enumerate(self.plan.steps)
        return [(place, step) for place, step in steps if isinstance(step, RowTiles)]

    def _intervals(self) -> dict[Any, Interval]:
        intervals = super()._intervals()
        for place, tiles in self._tiles():
            size = self.local_stride(tiles) * self.chunks(tiles)
            intervals[tiles] = Interval(place, place, size)
        return intervals

    def _arrange(self) -> tuple[dict[Any, int], int]:
        places, total = super()._arrange()
        for _, tiles in self._tiles():
            for slot_number, offset in self.local_places(tiles)[0].items():
                places[slot_number] = places[tiles] + offset
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

    def row_bytes(self, tiles: RowTiles, number: int) -> int:
        dtype = self.plan.slots[number].dtype
        assert dtype is not None
        return self.size(tiles.strides[number]) * dtype.itemsize

    def block(self, tiles: RowTiles) -> int:
        """How many rows to take at a time: what they touch should stay in the cache."""
        rows = self.size(tiles.rows)
        _, held = arrange(self._local_intervals(tiles, 1))
        for number in tiles.strides:
            if self.plan.slots[number].kind is not SlotKind.LOCAL:
                # It comes and goes once.
                held += self.row_bytes(tiles, number) // 2
        fitting = cache_bytes() * 3 // 4 // max(1, held) // ROW_STEP * ROW_STEP
        share = -(-rows // self.chunks(tiles))
        return max(1, min(max(LEAST_BLOCK, fitting), share))


def _may_be_large(slot: Slot) -> bool:
    """Too large, perhaps, for memory that the process has at hand."""
    assert slot.shape is not None
    assert slot.dtype is not None
    sizes = [size for size in slot.shape if isinstance(size, int)]
    known = len(sizes) == len(slot.shape)
    return not known or math.prod(sizes) * slot.dtype.itemsize >= LARGE


class CpuWriter(NativeWriter):
    parameters = "inputs, binding, threads"

    def __init__(self, plan: Plan, runs: Sequence[Run], looks: bool = False) -> None:
        super().__init__(plan, runs, looks)
        self.constants.update(cpu=CPU, empty_strided=torch.empty_strided, native=runner())

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        if _may_be_large(self.plan.slots[slot]):
            return f"binding.pools[{slot}].take()"
        return f"empty_strided({shape}, {strides}, dtype={dtype}, device=cpu)"

    def native(self) -> None:
        self.line("native(*call, threads)")
