"""Recordings of programs on the processor: a stand-in for what records on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch

from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.gpu.graphs import Recordings
from adjoint.runtime.gpu.program import used_inputs
from adjoint.torch_private import trees

T = TypeVar("T")
CPU = torch.device("cpu")

STREAM, SIDE = 7, 8


def places_of(inputs: Sequence[Any]) -> set[int]:
    # Zeros that are known to be so have no memory.
    tensors = [each for each in inputs if isinstance(each, torch.Tensor) and each.data_ptr()]
    return {each.untyped_storage().data_ptr() for each in tensors}


class Again:
    """Does again what was recorded, where the results of that are."""

    def __init__(self, work: Callable[[int], Any], results: Any, given: set[int]) -> None:
        self.work = work
        self.results = results
        self.given = given
        self.streams: list[int] = []

    def launch(self, stream: int) -> None:
        self.streams.append(stream)
        for old, new in zip(self.results, trees.leaves(self.work(stream)), strict=True):
            if isinstance(old, torch.Tensor) and old.untyped_storage().data_ptr() not in self.given:
                old.data.copy_(new)


class StandIn:
    """Records on the processor: to launch a recording is to run the same function again."""

    def __init__(self) -> None:
        self.device = CPU
        self.somebody_records = False
        self.used = 1 << 40
        self.told: Hashable = None
        self.error: RuntimeError | None = None
        self.made: list[Again] = []
        self.given: set[int] = set()
        """Where the inputs of the last call lie; they themselves are held by nobody."""

    def is_recording(self) -> bool:
        return self.somebody_records

    def settings(self) -> Hashable:
        return self.told

    def most_used(self) -> int:
        return self.used

    def record(self, work: Callable[[int], T]) -> tuple[Again, T]:
        if self.error is not None:
            work(SIDE)
            raise self.error
        results = work(SIDE)
        self.made.append(Again(work, trees.leaves(results), self.given))
        return self.made[-1], results


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

    def run(self, inputs: list[Any], place: Any, stream: int) -> Any:
        self.streams.append(stream)
        given = list(inputs)
        inputs.clear()
        self.recorder.given = places_of(given)
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


class RecordedProgram(CpuProgram):
    """A program of the processor, under recordings as one of a GPU is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.recorder = StandIn()
        self.recordings = Recordings(self.noted, used_inputs(self.plan), self.recorder)
        self.places: dict[Any, Any] = {}

    def noted(self, inputs: list[Any], place: Any, threads: int) -> Any:
        self.recorder.given = places_of(inputs)
        return self._run(inputs, place, 1)

    def __call__(self, inputs: list[Any]) -> Any:
        sizes = self._sizes(inputs)
        if sizes not in self.places:
            self.places[sizes] = self._binding(sizes, 1)
            self.places[sizes].is_stale = False
        return self.recordings(inputs, self.places[sizes], 1)
