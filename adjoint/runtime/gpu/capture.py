"""Capturing CUDA graphs.

Memory that is allocated during capture, including the workspaces of matrix products, comes from a
private pool of the stream on which graphs are replayed.  Replays on a stream run one after another
and nothing in the pool outlives one, so all graphs of a stream share it.  Graphs that draw random
numbers are torch's own, which advance its generator, and have a pool each.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch

from adjoint.runtime.gpu.captured_calls import Launchable
from adjoint.runtime.gpu.driver import capture, destroy_graph, launch_graph, relaxed
from adjoint.torch_private.cuda import (
    DrawingGraph,
    MemoryPool,
    allocate_from,
    empty_strided,
    is_capturing,
    new_graph_pool,
    numeric_settings,
)

T = TypeVar("T")

_LOCK = threading.Lock()


@functools.cache
def _side_stream(device: torch.device, stream: int) -> tuple[torch.cuda.Stream, MemoryPool]:
    """A stream on which to capture what `stream` will replay, and a memory pool.

    `stream` itself may be the legacy default stream, which cannot be captured.
    """
    return torch.cuda.Stream(device), new_graph_pool()


class CudaGraph:
    """An instantiated CUDA graph."""

    def __init__(self, executable: int, device: int) -> None:
        self._executable = executable
        self._device = device
        # At exit the driver frees everything, and may not be callable any more.
        weakref.finalize(self, destroy_graph, executable).atexit = False

    def launch(self, stream: int) -> None:
        launch_graph(self._executable, stream, self._device)


class CudaGraphThatDraws:
    """A CUDA graph that draws random numbers."""

    def __init__(self, graph: DrawingGraph) -> None:
        self._graph = graph
        weakref.finalize(self, _free, graph).atexit = False

    def launch(self, stream: int) -> None:
        # Programs run on torch's current stream, on which torch replays.
        self._graph.replay()


def _free(graph: DrawingGraph) -> None:
    """Free a graph of torch's, maybe while another one is captured."""
    with relaxed():
        graph.free()


class CudaCapturer:
    """Captures what is launched on a device."""

    def __init__(self, device: torch.device, draws: bool = False) -> None:
        """`draws`: random numbers of the device's default generator may be drawn."""
        self.device = device
        self._draws = draws
        # Allocates on the current device, which is the program's whenever it runs.
        self.new = empty_strided

    def allocate(
        self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Memory for the result at a slot; the capturer keeps no reference to it."""
        return empty_strided(shape, strides, dtype)

    @functools.cached_property
    def device_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def is_capturing(self) -> bool:
        return is_capturing()

    def settings(self) -> Hashable:
        return numeric_settings()

    def capture(self, work: Callable[[int], T], stream: int) -> tuple[Launchable, T]:
        """Capture what `work` launches on the stream that it is given.  Nothing runs."""
        index = self.device.index
        with _LOCK, torch.cuda.device(self.device):
            side, pool = _side_stream(self.device, stream)
            on = side.cuda_stream
            try:
                if self._draws:
                    results: list[T] = []
                    with torch.cuda.stream(side):
                        graph = DrawingGraph(lambda: results.append(work(on)), index)
                    return CudaGraphThatDraws(graph), results[0]
                with torch.cuda.stream(side), allocate_from(pool, index):
                    executable, result = capture(lambda: work(on), on, index)
            except BaseException:
                # Consume the pending CUDA error, which torch would raise at the next launch.
                with contextlib.suppress(RuntimeError):
                    torch.zeros((), device=self.device)
                raise
        return CudaGraph(executable, index), result
