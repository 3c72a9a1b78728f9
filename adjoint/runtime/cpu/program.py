"""A plan on the CPU: native runs of kernels, with library calls between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from typing_extensions import assert_never

from adjoint.loops.footprint import Processor
from adjoint.loops.plan import (
    Launch,
    NativeStep,
    Plan,
    Product,
    RowTiles,
    Slot,
    SlotKind,
    operands_of,
)
from adjoint.loops.runs import Run
from adjoint.open_types import TorchValue
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.callables import kernel_runner
from adjoint.runtime.cpu.memory import (
    MIN_POOLED_BYTES,
    ResultPool,
    cache_bytes,
    keep_freed_memory,
    share,
)
from adjoint.runtime.cpu.products import gemm, whole_product_words
from adjoint.runtime.cpu.tiles import row_tile_words, tile_runner
from adjoint.runtime.plans.binding import BINDING_FAILURES, MakeTensors, NativeBinding
from adjoint.runtime.plans.host import Addresses, NativeHost
from adjoint.runtime.plans.hostcode import Value, Word
from adjoint.runtime.plans.layout import ALIGNMENT_BYTES
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.writing import NativeWriter
from adjoint.target import CPU
from adjoint.torch_private.storages import empty_strided

# With fewer elements, waking a thread takes longer than its work.
MIN_ELEMENTS_PER_THREAD = 8192

# The number of rows of a tile is a multiple of this.
TILE_ROWS_MULTIPLE = 16

# With fewer rows, matrix products are too slow for tiling to pay.
MIN_TILE_ROWS = 256


# Bindings kept for later calls: each owns memory, and many threads may have called at once.
MAX_FREE_BINDINGS = 4


def this_processor() -> Processor:
    """What the memory of programs depends on, in this process."""
    return Processor(torch.get_num_threads(), _tile_bytes(), MIN_TILE_ROWS)


def _tile_bytes() -> int:
    """The bytes that the rows of a tile may have: most of the L2 cache."""
    return cache_bytes() * 3 // 4


class CpuProgram(PlanProgram):
    host: CpuHost

    def __init__(self, plan: Plan, functions: Mapping[Launch, NativeFunction]) -> None:
        keep_freed_memory()
        # Loaded now, when the store of the compilation is at hand.
        kernel_runner()
        self.functions = functions
        """The native code of each kernel, kept alive by the program."""
        super().__init__(plan, CPU)
        self._share = share()
        self._bindings: list[CpuBinding] = []
        """Bindings that no call is using."""

    def _host(self) -> CpuHost:
        return CpuHost(self.plan, self.runs, self.functions, torch.get_num_threads())

    def _writer(self, checks: bool = False) -> CpuWriter:
        return CpuWriter(self.host, self.runs, checks)

    def _binding(self, threads: int) -> CpuBinding:
        with BINDING_FAILURES:
            if threads > self.host.max_threads:
                self.host = self._host()
            return CpuBinding(self.host, self._bind)

    def __call__(self, inputs: list[TorchValue]) -> TorchValue:
        threads = torch.get_num_threads()
        sizes = (*self._sizes(inputs), threads) if self.plan.symbols else (threads,)
        # A concurrent or nested call gets a binding of its own.
        try:
            binding = self._bindings.pop()
            if threads > binding.host.max_threads:
                binding = self._binding(threads)
        except IndexError:
            binding = self._binding(threads)
        try:
            if binding.sizes != sizes:
                with BINDING_FAILURES:
                    binding.bind(sizes)
            if binding.is_checked:
                return self._run(inputs, binding, threads)
            return self._run_checked(inputs, binding, threads)
        finally:
            if self.plan.gives_back:
                binding.give_back()
            if len(self._bindings) < MAX_FREE_BINDINGS:
                self._bindings.append(binding)


class CpuHost(NativeHost):
    def __init__(
        self,
        plan: Plan,
        runs: Sequence[Run],
        functions: Mapping[Launch, NativeFunction],
        max_threads: int,
    ) -> None:
        """`max_threads`: row tiles have arguments for this many threads."""
        self.max_threads = max_threads
        self._local: dict[RowTiles, tuple[dict[int, Value], Value]] = {}
        self._tile_rows: dict[RowTiles, Value] = {}
        super().__init__(plan, runs, functions)

    def chunks(self, step: NativeStep) -> Value:
        assert not isinstance(step, Product), "the BLAS shares out its own work"
        share = self.size(step.work) // MIN_ELEMENTS_PER_THREAD
        return share.at_most(self.threads).at_least(1)

    def _entry(self, step: NativeStep, address: Addresses) -> list[Word]:
        """The addresses of the function and of its arguments."""
        match step:
            case Launch():
                return [self.functions[step].address, self.code.put(self.arguments(step, address))]
            case RowTiles():
                return [tile_runner(), row_tile_words(self, step, address)]
            case Product():
                return [gemm(step.dtype), whole_product_words(self.code, step, address)]
            case _:
                assert_never(step)

    # Row tiles

    def _tiles(self) -> list[tuple[int, RowTiles]]:
        steps = enumerate(self.plan.steps)
        return [(position, step) for position, step in steps if isinstance(step, RowTiles)]

    def _lifetimes(self) -> dict[object, tuple[int, int, Value]]:
        lifetimes = super()._lifetimes()
        for position, tiles in self._tiles():
            size = self.local_stride(tiles) * self.chunks(tiles)
            lifetimes[tiles] = (position, position, size)
        return lifetimes

    def _lay_out(self) -> tuple[dict[object, Value], Value]:
        offsets, total = super()._lay_out()
        for _, tiles in self._tiles():
            for slot_number, offset in self._local_rows(tiles)[0].items():
                offsets[slot_number] = offsets[tiles] + offset * self._rows_of_memory(tiles)
        return offsets, total

    def _local_rows(self, tiles: RowTiles) -> tuple[dict[int, Value], Value]:
        """Offsets of the local slots within one row of a tile, and the bytes of the row."""
        if tiles not in self._local:
            spans: dict[int, tuple[int, int]] = {}
            for position, step in enumerate(tiles.body):
                for operand in operands_of(step):
                    if isinstance(operand, int) and self.plan.slots[operand].kind is SlotKind.LOCAL:
                        first, _ = spans.get(operand, (position, position))
                        spans[operand] = (first, position)
            lifetimes = [(*span, self.row_bytes(tiles, slot)) for slot, span in spans.items()]
            offsets, total = self.code.layout(lifetimes, 1)
            self._local[tiles] = dict(zip(spans, offsets, strict=True)), total
        return self._local[tiles]

    def _rows_of_memory(self, tiles: RowTiles) -> Value:
        """The rows of a tile, rounded up so that the memory of each local slot is aligned."""
        return self.tile_rows(tiles).rounded_up(ALIGNMENT_BYTES)

    def local_stride(self, tiles: RowTiles) -> Value:
        """The bytes of a thread's memory for one tile."""
        return self._local_rows(tiles)[1] * self._rows_of_memory(tiles)

    def row_bytes(self, tiles: RowTiles, number: int) -> Value:
        dtype = self.plan.slots[number].dtype
        assert dtype is not None
        return self.size(tiles.strides[number]) * dtype.itemsize

    def tile_rows(self, tiles: RowTiles) -> Value:
        """The rows of a tile: what they read and write should stay in the L2 cache."""
        # Every local operand asks for it.
        if tiles not in self._tile_rows:
            self._tile_rows[tiles] = self._fitting_rows(tiles)
        return self._tile_rows[tiles]

    def _fitting_rows(self, tiles: RowTiles) -> Value:
        row_bytes = self._local_rows(tiles)[1]
        for number in tiles.strides:
            if self.plan.slots[number].kind is not SlotKind.LOCAL:
                # Streamed through the cache once, so that it is counted half.
                row_bytes = row_bytes + self.row_bytes(tiles, number) // 2
        fitting = _tile_bytes() // row_bytes.at_least(1)
        fitting = fitting // TILE_ROWS_MULTIPLE * TILE_ROWS_MULTIPLE
        share = -(-self.size(tiles.rows) // self.chunks(tiles))
        return fitting.at_least(MIN_TILE_ROWS).at_most(share).at_least(1)


class CpuBinding(NativeBinding):
    host: CpuHost

    def __init__(self, host: CpuHost, make_tensors: MakeTensors) -> None:
        super().__init__(host, make_tensors)
        self.pools = {
            slot.number: ResultPool(slot.dtype)
            for slot in host.plan.slots
            if slot.kind is SlotKind.OUTPUT and slot.dtype is not None and _may_be_large(slot)
        }

    def _runner(self, words: int) -> Callable[..., int]:
        return kernel_runner()(words)


def _may_be_large(slot: Slot) -> bool:
    """Whether the result may have `MIN_POOLED_BYTES` or more."""
    assert slot.shape is not None
    assert slot.dtype is not None
    sizes = [size for size in slot.shape if isinstance(size, int)]
    known = len(sizes) == len(slot.shape)
    return not known or math.prod(sizes) * slot.dtype.itemsize >= MIN_POOLED_BYTES


class CpuWriter(NativeWriter):
    parameters = "inputs, binding, threads"
    names: ClassVar = {"empty_strided": empty_strided}

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        if _may_be_large(self.plan.slots[slot]) and not self.plan.gives_back:
            return f"binding.pools[{slot}].take({shape}, {strides})"
        return f"empty_strided({shape}, {strides}, {dtype})"

    def native(self, call: str) -> None:
        self.line(f"{call}threads)")
