"""What a device is told to do, written down once and done again by one call.

Memory that is taken meanwhile, also that in which matrix products work, is from a pool that belongs
to the stream on which recordings are launched.  They run one after another, and nothing in it
outlives a run: so they share it, and torch's allocator gives it to nobody else.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from adjoint.runtime.gpu.driver import forget_graph, launch_graph, record
from adjoint.torch_private.cuda import (
    allocate_from,
    empty_strided,
    is_capturing,
    new_graph_pool,
    numeric_settings,
)

T = TypeVar("T")

_LOCK = threading.Lock()


@functools.cache
def _beside(device: torch.device, stream: int) -> tuple[torch.cuda.Stream, Any]:
    """Where to record what `stream` will run, and memory for it.

    The stream itself may be the one that nothing can be recorded on.
    """
    return torch.cuda.Stream(device), new_graph_pool()


class CudaGraph:
    """Something recorded."""

    def __init__(self, executable: int, device: int) -> None:
        self._executable = executable
        self._device = device
        # With the process, everything goes by itself.
        weakref.finalize(self, forget_graph, executable).atexit = False

    def launch(self, stream: int) -> None:
        launch_graph(self._executable, stream, self._device)


class CudaCapture:
    """Records what is launched on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Programs are called with their device as the current one.
        self.new = empty_strided

    def is_capturing(self) -> bool:
        return is_capturing()

    def settings(self) -> Hashable:
        return numeric_settings()

    def record(self, work: Callable[[int], T], stream: int) -> tuple[CudaGraph, T]:
        """What `work` launches on the stream that it is given, for `stream`.  Nothing runs."""
        index = self.device.index
        with _LOCK, torch.cuda.device(self.device):
            side, pool = _beside(self.device, stream)
            try:
                with torch.cuda.stream(side), allocate_from(pool, index):
                    on = side.cuda_stream
                    executable, result = record(lambda: work(on), on, index)
            except BaseException:
                # torch reports an error of the device at the next launch, if nobody did before.
                with contextlib.suppress(RuntimeError):
                    torch.zeros((), device=self.device)
                raise
        return CudaGraph(executable, index), result
