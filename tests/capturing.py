"""A stand-in on the CPU for the capture of CUDA graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from adjoint.runtime.cpu.memory import ResultPool
from adjoint.runtime.cpu.program import CpuBinding, CpuProgram, CpuWriter
from adjoint.runtime.gpu.cuda_graphs import CALLS_BEFORE_CAPTURE, CudaGraphs
from adjoint.runtime.gpu.program import used_inputs
from adjoint.runtime.gpu.results import MAX_SMALL_BYTES, AllocateSlot

T = TypeVar("T")
CPU = torch.device("cpu")

STREAM, SIDE = 7, 8


def at_its_place(value: Any) -> Any:
    """A tensor in the same memory, without holding it."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    count = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    memory = (ctypes.c_char * (count * value.element_size())).from_address(value.data_ptr())
    storage = torch.frombuffer(memory, dtype=value.dtype).untyped_storage()
    return torch.empty(0, dtype=value.dtype).set_(storage, 0, value.shape, value.stride())


class Replayed:
    """Runs the captured function again, on the memory of the captured call."""

    def __init__(self, work: Any) -> None:
        inputs = list(map(at_its_place, work.inputs))
        targets = {number: at_its_place(each) for number, each in work.targets.items()}
        self.work = replace(work, inputs=inputs, targets=targets)
        self.streams: list[int] = []

    def launch(self, stream: int) -> None:
        self.streams.append(stream)
        self.work(stream)


class StandIn:
    """Captures on the CPU: to replay is to run the same function again."""

    def __init__(self) -> None:
        self.device = CPU
        self.somebody_records = False
        self.device_bytes = 0
        """With none, large results do not lie in memory of a graph."""
        self.told: Hashable = None
        self.error: RuntimeError | None = None
        self.made: list[Replayed] = []
        self.pools: dict[Any, ResultPool] = {}
        """Memory comes back at the same addresses."""

    def is_capturing(self) -> bool:
        return self.somebody_records

    def settings(self) -> Hashable:
        return self.told

    def new(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        key = (shape, strides, dtype)
        if key not in self.pools:
            self.pools[key] = ResultPool(dtype)
            # What it forgets would be held by one less than before.
            self.pools[key].MAX_BUFFERS = 64
        return self.pools[key].take(shape, strides)

    def allocate(
        self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return self.new(shape, strides, dtype)

    def capture(self, work: Callable[[int], T], stream: int) -> tuple[Replayed, T]:
        if self.error is not None:
            work(SIDE)
            raise self.error
        result = work(SIDE)
        self.made.append(Replayed(work))
        return self.made[-1], result


class Held:
    is_stale = False


class Place:
    def __init__(self, *sizes: int) -> None:
        self.lease = Held()
        self.sizes: tuple[int, ...] | None = (*sizes, 1)


class Program:
    """A function whose calls are captured, and the streams that it was called for."""

    def __init__(self, function: Callable[..., Any], count: int = 1) -> None:
        self.function = function
        self.streams: list[int] = []
        self.capturer = StandIn()
        self.place = Place()
        self.cuda_graphs = CudaGraphs(self.run, range(count), self.capturer)

    def run(self, inputs: list[Any], place: Any, stream: int, new: AllocateSlot) -> Any:
        self.streams.append(stream)
        given = list(inputs)
        inputs.clear()
        with torch.no_grad():
            return self.function(*given)

    def __call__(self, *inputs: Any) -> Any:
        given = list(inputs)
        with torch.no_grad():
            results = self.cuda_graphs(given, self.place, STREAM)
        assert given == []
        return results

    @property
    def replays(self) -> int:
        return self.cuda_graphs.replays


class Asking(CpuWriter):
    """The program asks for memory as one of a GPU does."""

    parameters = "inputs, binding, threads, new"

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        return f"new({slot}, {shape}, {strides}, {dtype})"


class LeasedBinding(CpuBinding):
    lease = Held()


class CapturedProgram(CpuProgram):
    """A CPU program whose calls are captured as those of a GPU program are."""

    forgets_histories = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.capturer = StandIn()
        self.cuda_graphs = CudaGraphs(self._run, used_inputs(self.plan), self.capturer)
        self.places: dict[Any, Any] = {}

    def _writer(self, checks: bool = False) -> CpuWriter:
        return Asking(self.host, self.runs, checks)

    def __call__(self, inputs: list[Any]) -> Any:
        sizes = (*self._sizes(inputs), 1)
        if sizes not in self.places:
            binding = self.places[sizes] = LeasedBinding(self.host, self._bind)
            binding.bind(sizes)
        return self.cuda_graphs(inputs, self.places[sizes], 1)


# Elements of a result that is too large to be copied.
LARGE = MAX_SMALL_BYTES // 4 + 1


def double(x: torch.Tensor) -> list[torch.Tensor]:
    return [2 * x]


def settled(function: Callable[..., Any], *inputs: Any) -> Program:
    """A program that is captured for `inputs`."""
    program = Program(function, len(inputs))
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        program(*inputs)
    assert len(program.capturer.made) == 1
    return program


def large() -> torch.Tensor:
    return torch.rand(LARGE)
