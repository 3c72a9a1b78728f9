"""Recordings of programs on the processor: a stand-in for what records on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from adjoint.runtime.cpu.memory import ResultPool
from adjoint.runtime.cpu.program import CpuProgram, CpuWriter
from adjoint.runtime.gpu.graphs import Recordings
from adjoint.runtime.gpu.program import used_inputs
from adjoint.runtime.gpu.results import New

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


class Again:
    """Does again what was recorded, where that was."""

    def __init__(self, work: Any) -> None:
        inputs = list(map(at_its_place, work.inputs))
        goals = {number: at_its_place(each) for number, each in work.goals.items()}
        self.work = replace(work, inputs=inputs, goals=goals)
        self.streams: list[int] = []

    def launch(self, stream: int) -> None:
        self.streams.append(stream)
        self.work(stream)


class StandIn:
    """Records on the processor: to launch a recording is to run the same function again."""

    def __init__(self) -> None:
        self.device = CPU
        self.somebody_records = False
        self.told: Hashable = None
        self.error: RuntimeError | None = None
        self.made: list[Again] = []
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
            self.pools[key] = ResultPool(*key)
            # What it forgets would be held by one less than before.
            self.pools[key].MAX_BUFFERS = 64
        return self.pools[key].take()

    def record(self, work: Callable[[int], T], stream: int) -> tuple[Again, T]:
        if self.error is not None:
            work(SIDE)
            raise self.error
        result = work(SIDE)
        self.made.append(Again(work))
        return self.made[-1], result


class Place:
    is_stale = False


class Program:
    """A function under recordings, and which streams it was called for."""

    def __init__(self, function: Callable[..., Any], count: int = 1) -> None:
        self.function = function
        self.streams: list[int] = []
        self.recorder = StandIn()
        self.place = Place()
        self.recordings = Recordings(self.run, range(count), self.recorder)

    def run(self, inputs: list[Any], place: Any, stream: int, new: New) -> Any:
        self.streams.append(stream)
        given = list(inputs)
        inputs.clear()
        with torch.no_grad():
            return self.function(*given)

    def __call__(self, *inputs: Any) -> Any:
        given = list(inputs)
        with torch.no_grad():
            results = self.recordings(given, self.place, STREAM)
        assert given == []
        return results

    @property
    def replays(self) -> int:
        return self.recordings.replays


class Asking(CpuWriter):
    """The program asks for memory as one of a GPU does."""

    parameters = "inputs, binding, threads, new"

    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        return f"new({slot}, {shape}, {strides}, {dtype})"


class RecordedProgram(CpuProgram):
    """A program of the processor, under recordings as one of a GPU is."""

    forgets_histories = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.recorder = StandIn()
        self.recordings = Recordings(self._run, used_inputs(self.plan), self.recorder)
        self.places: dict[Any, Any] = {}

    def _writer(self, checks: bool = False) -> CpuWriter:
        return Asking(self.plan, self.runs, checks)

    def __call__(self, inputs: list[Any]) -> Any:
        sizes = self._sizes(inputs)
        if sizes not in self.places:
            self.places[sizes] = self._binding(sizes, 1)
            self.places[sizes].is_stale = False
        return self.recordings(inputs, self.places[sizes], 1)
