"""What a device is told to do, written down once and done again by one call.

Memory that is taken meanwhile belongs to the recording: torch's allocator gives it to nobody else
as long as the recording lives, so that what runs again finds it as it was.
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
    forget_workspaces,
    give_back,
    is_recording,
    numeric_settings,
    own_memory,
)

T = TypeVar("T")

_LOCK = threading.Lock()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that programs run on may be the one that nothing can be recorded on."""
    return torch.cuda.Stream(device)


class CudaGraph:
    """Something recorded, with its memory."""

    def __init__(self, executable: int, memory: Any, device: int) -> None:
        self._executable = executable
        self._device = device
        # With the process, everything goes by itself.
        weakref.finalize(self, _forget, executable, memory, device).atexit = False

    def launch(self, stream: int) -> None:
        launch_graph(self._executable, stream, self._device)


def _forget(executable: int, memory: Any, device: int) -> None:
    forget_graph(executable)
    give_back(device, memory)


class CudaRecorder:
    """Records what is launched on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def is_recording(self) -> bool:
        return is_recording()

    def settings(self) -> Hashable:
        return numeric_settings()

    def new(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=self.device)

    def record(self, work: Callable[[int], T]) -> tuple[CudaGraph, T]:
        """What `work` launches on the stream that it is given.  Nothing runs."""
        index = self.device.index
        with _LOCK, torch.cuda.device(self.device):
            side = _side_stream(self.device)
            # The memory in which matrix products work becomes a part of the recording, too: torch
            # shares it among all that a stream runs, and streams may run recordings side by side.
            forget_workspaces()
            memory = None
            try:
                with torch.cuda.stream(side), own_memory(index) as memory:
                    on = side.cuda_stream
                    executable, result = record(lambda: work(on), on, index)
            except BaseException:
                if memory is not None:
                    give_back(index, memory)
                # torch reports an error of the device at the next launch, if nobody did before.
                with contextlib.suppress(RuntimeError):
                    torch.zeros((), device=self.device)
                raise
            finally:
                forget_workspaces()
        return CudaGraph(executable, memory, index), result
