"""A plan on the CPU: native runs of kernels, with library calls between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from adjoint.loops.plan import Launch, Plan, RowTiles, Slot, SlotKind, operands_of
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import runner
from adjoint.runtime.cpu.memory import (
    Lifetime,
    ResultPool,
    Word,
    Words,
    assign_offsets,
    cache_bytes,
    keep_freed_memory,
    share,
)
from adjoint.runtime.cpu.tiles import row_tile_words, tile_runner
from adjoint.runtime.plans.binding import Addresses, NativeBinding, binding_failures
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.runs import Run
from adjoint.runtime.plans.writing import NativeWriter
from adjoint.target import CPU

# With fewer elements, waking a thread takes longer than its work.
MIN_ELEMENTS_PER_THREAD = 8192

# Results from this size on are pooled: new blocks of malloc would be page faults.
MIN_POOLED_BYTES = 1 << 16

# The number of rows of a tile is a multiple of it.
TILE_ROWS_MULTIPLE = 16

# With fewer rows, matrix products are too slow for tiling to pay.
MIN_TILE_ROWS = 256

# Bindings kept, for the most recent input sizes: each owns the memory of all temporaries.
MAX_BINDINGS = 2


class CpuProgram(PlanProgram):
    def __init__(self, plan: Plan, functions: Mapping[Launch, NativeFunction]) -> None:
        keep_freed_memory()
        super().__init__(plan, CPU)
        self._share = share()
        self.functions = functions
        """The native code of each kernel, kept alive by the program."""
        self._bindings: dict[Any, list[CpuBinding]] = {}

    def _writer(self, checks: bool = False) -> CpuWriter:
        return CpuWriter(self.plan, self.runs, checks)

    def _binding(self, sizes: Sequence[int], threads: int) -> CpuBinding:
        with binding_failures():
            return CpuBinding(self.plan, self.runs, self.functions, sizes, threads)

    def __call__(self, inputs: list[Any]) -> Any:
        threads = torch.get_num_threads()
        sizes = self._sizes(inputs)
        key = (threads, sizes)
        free = self._bindings.get(key)
        if free is None:
            while len(self._bindings) >= MAX_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)))
            free = self._bindings[key] = []
        # A concurrent or nested call gets a binding of its own.
        try:
            binding = free.pop()
        except IndexError:
            binding = self._binding(sizes, threads)
        try:
            if binding.is_checked:
                return self._run(inputs, binding, threads)
            return self._run_checked(inputs, binding, threads)
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
            slot.number: ResultPool(self.shapes[slot.number], self.strides[slot.number], slot.dtype)
            for slot in plan.slots
            if slot.kind is SlotKind.OUTPUT and slot.dtype is not None and _may_be_large(slot)
        }

    def _memory(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=CPU)

    def chunks(self, step: Launch | RowTiles) -> int:
        return max(1, min(self.threads, self.size(step.work) // MIN_ELEMENTS_PER_THREAD))

    def _entry(self, step: Launch | RowTiles, address: Addresses, words: Words) -> list[Word]:
        """The addresses of the function and of its arguments."""
        if isinstance(step, RowTiles):
            return [tile_runner(), row_tile_words(self, step, address, words)]
        return [self.functions[step].address, words.put(self._arguments(step, address))]

    # Row tiles

    def _tiles(self) -> list[tuple[int, RowTiles]]:
        steps = enumerate(self.plan.steps)
        return [(position, step) for position, step in steps if isinstance(step, RowTiles)]

    def _lifetimes(self) -> dict[Any, Lifetime]:
        lifetimes = super()._lifetimes()
        for position, tiles in self._tiles():
            size = self.local_stride(tiles) * self.chunks(tiles)
            lifetimes[tiles] = Lifetime(position, position, size)
        return lifetimes

    def _assign_offsets(self) -> tuple[dict[Any, int], int]:
        offsets, total = super()._assign_offsets()
        for _, tiles in self._tiles():
            for slot_number, offset in self.local_offsets(tiles)[0].items():
                offsets[slot_number] = offsets[tiles] + offset
        return offsets, total

    def local_offsets(self, tiles: RowTiles) -> tuple[dict[Any, int], int]:
        """Offsets of the local slots within a thread's memory for one tile, and its bytes."""
        if tiles not in self._local:
            self._local[tiles] = assign_offsets(self._local_lifetimes(tiles, self.tile_rows(tiles)))
        return self._local[tiles]

    def local_stride(self, tiles: RowTiles) -> int:
        return self.local_offsets(tiles)[1]

    def _local_lifetimes(self, tiles: RowTiles, rows: int) -> dict[int, Lifetime]:
        lifetimes: dict[int, Lifetime] = {}
        for position, step in enumerate(tiles.body):
            for operand in operands_of(step):
                if isinstance(operand, int) and self.plan.slots[operand].kind is SlotKind.LOCAL:
                    first = lifetimes[operand].first if operand in lifetimes else position
                    size = rows * self.row_bytes(tiles, operand)
                    lifetimes[operand] = Lifetime(first, position, size)
        return lifetimes

    def row_bytes(self, tiles: RowTiles, number: int) -> int:
        dtype = self.plan.slots[number].dtype
        assert dtype is not None
        return self.size(tiles.strides[number]) * dtype.itemsize

    def tile_rows(self, tiles: RowTiles) -> int:
        """The rows of a tile: what they read and write should stay in the L2 cache."""
        rows = self.size(tiles.rows)
        _, row_bytes = assign_offsets(self._local_lifetimes(tiles, 1))
        for number in tiles.strides:
            if self.plan.slots[number].kind is not SlotKind.LOCAL:
                # Streamed through the cache once, so that it is counted half.
                row_bytes += self.row_bytes(tiles, number) // 2
        fitting = cache_bytes() * 3 // 4 // max(1, row_bytes)
        fitting = fitting // TILE_ROWS_MULTIPLE * TILE_ROWS_MULTIPLE
        share = -(-rows // self.chunks(tiles))
        return max(1, min(max(MIN_TILE_ROWS, fitting), share))


def _may_be_large(slot: Slot) -> bool:
    """The result may have `MIN_POOLED_BYTES` or more."""
    assert slot.shape is not None
    assert slot.dtype is not None
    sizes = [size for size in slot.shape if isinstance(size, int)]
    known = len(sizes) == len(slot.shape)
    return not known or math.prod(sizes) * slot.dtype.itemsize >= MIN_POOLED_BYTES


class CpuWriter(NativeWriter):
    parameters = "inputs, binding, threads"

    def __init__(self, plan: Plan, runs: Sequence[Run], checks: bool = False) -> None:
        super().__init__(plan, runs, checks)
        self.constants.update(cpu=CPU, empty_strided=torch.empty_strided, native=runner())

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        if _may_be_large(self.plan.slots[slot]):
            return f"binding.pools[{slot}].take()"
        return f"empty_strided({shape}, {strides}, dtype={dtype}, device=cpu)"

    def native(self) -> None:
        self.line("native(*call, threads)")
