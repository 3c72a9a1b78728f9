"""Memory of a CPU program: pools of results, and what the C library keeps or gives back."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from adjoint.torch_private.storages import Holders, empty_strided

# Where the system does not report a size: most CPUs have at least as much.
DEFAULT_CACHE_BYTES = 1 << 20


@functools.cache
def cache_bytes() -> int:
    """The size of a core's L2 cache."""
    file = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    text = file.read_text().strip() if file.exists() else ""
    return int(text[:-1]) * 1024 if text.endswith("K") else DEFAULT_CACHE_BYTES


# Passed explicitly to every allocation: a `torch.device` context around a call would override it.
CPU = torch.device("cpu")

# Below the largest mmap threshold of glibc, 32 MiB including the block's header.
MALLOC_THRESHOLD_BYTES = 31 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Raise malloc's mmap threshold, so that memory freed by library ops stays in the process.

    glibc returns blocks above the threshold to the system, and each page of the next such block is
    a page fault.  The threshold grows to the size of the largest such block that was ever freed:
    here one is allocated and freed without touching its pages.
    """
    torch.empty(MALLOC_THRESHOLD_BYTES, dtype=torch.uint8, device=CPU)


# malloc_trim takes milliseconds: it runs once for this many programs that were freed.
PROGRAMS_PER_TRIM = 32

_DEAD_PROGRAMS = itertools.count(1)


def share() -> npt.NDArray[np.uint8]:
    """An object that a program holds, so that freed programs cause memory to be trimmed.

    Programs leave small free blocks between live ones, which the C library keeps unless it is asked
    to return them.  The garbage collector does not track arrays, so this one is freed together with
    the program's members, not before them as objects with finalizers are.
    """
    held = np.empty(0, dtype=np.uint8)
    weakref.finalize(held, _died).atexit = False
    return held


def _died() -> None:
    if next(_DEAD_PROGRAMS) % PROGRAMS_PER_TRIM == 0:
        give_back()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Return free memory to the system, if the C library can (`malloc_trim`)."""
    trim = _trim()
    if trim is not None:
        trim(0)


# Results from this size on are pooled: new blocks of malloc would be page faults.
MIN_POOLED_BYTES = 1 << 16


class ResultPool:
    """Buffers for one result of a program, each reused when nothing refers to it any more."""

    MAX_BUFFERS = 4

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.shape: tuple[int, ...] = ()
        self.strides: tuple[int, ...] = ()
        self._buffers: list[tuple[torch.Tensor, Holders]] = []

    def take(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        """Memory for the result: of an earlier one of the same sizes, or new."""
        if math.prod(shape) * self.dtype.itemsize < MIN_POOLED_BYTES:
            return empty_strided(shape, strides, self.dtype)
        if shape != self.shape or strides != self.strides:
            self.shape, self.strides, self._buffers = shape, strides, []
        for tensor, holders in self._buffers:
            if holders.are_gone():
                # `.data` shares the memory, but not the version counter, and is no view.
                return tensor.data
        new = empty_strided(shape, strides, self.dtype)
        self._buffers = [*self._buffers[-self.MAX_BUFFERS + 1 :], (new, Holders(new))]
        return new.data
