"""Memory of a CPU program: offsets of its temporaries, pools of results, and argument blocks.

Temporaries with disjoint lifetimes share memory.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import assert_never

from adjoint.torch_private.storages import Holders

# Bytes: kernels load whole cache lines.
ALIGNMENT = 64

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


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Lifetime:
    """A temporary: the step that writes it first, the last step that uses it, and its bytes."""

    first: int
    last: int
    size: int


def assign_offsets(lifetimes: Mapping[Key, Lifetime]) -> tuple[dict[Key, int], int]:
    """An offset for each temporary, and the total number of bytes.

    Best fit: each takes the tightest gap that is free during its lifetime, in the order of first
    steps, longest lifetimes first.  If that needs more than the peak of live bytes, placing the
    largest first is tried, too.
    """
    by_start = sorted(lifetimes.items(), key=lambda pair: (pair[1].first, -pair[1].last))
    offsets, total = _best_fit(by_start)
    if total > _peak_live_bytes(lifetimes.values()):
        others, less = _best_fit(sorted(by_start, key=lambda pair: -pair[1].size))
        if less < total:
            return others, less
    return offsets, total


def _best_fit(lifetimes: Sequence[tuple[Key, Lifetime]]) -> tuple[dict[Key, int], int]:
    offsets: dict[Key, int] = {}
    # Of those placed so far: first step, last step, start and end in memory.
    placed = np.zeros((4, len(lifetimes)), dtype=np.int64)
    for count, (key, lifetime) in enumerate(lifetimes):
        first, last, start, stop = placed[:, :count]
        overlaps = (first <= lifetime.last) & (last >= lifetime.first)
        size = _aligned(lifetime.size)
        taken = sorted(zip(start[overlaps].tolist(), stop[overlaps].tolist(), strict=True))
        offset = _tightest_gap(taken, size)
        offsets[key] = offset
        placed[:, count] = (lifetime.first, lifetime.last, offset, offset + size)
    return offsets, int(placed[3].max(initial=0))


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest sufficient gap between `taken` blocks, else the end of the last."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _peak_live_bytes(lifetimes: Iterable[Lifetime]) -> int:
    """The most bytes that are live in one step: a lower bound of the memory needed."""
    changes: dict[int, int] = {}
    for lifetime in lifetimes:
        size = _aligned(lifetime.size)
        changes[lifetime.first] = changes.get(lifetime.first, 0) + size
        changes[lifetime.last + 1] = changes.get(lifetime.last + 1, 0) - size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


class ResultPool:
    """Buffers for one result of a program, each reused when nothing refers to it any more."""

    MAX_BUFFERS = 4

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self._buffers: list[tuple[torch.Tensor, Holders]] = []

    def take(self) -> torch.Tensor:
        """Memory for the result: of an earlier one, or new."""
        for tensor, holders in self._buffers:
            if holders.are_gone():
                # `.data` shares the memory, but not the version counter, and is no view.
                return tensor.data
        new = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU)
        self._buffers = [*self._buffers[-self.MAX_BUFFERS + 1 :], (new, Holders(new))]
        return new.data


@dataclass(frozen=True)
class CallAddress:
    """An address that is known only in a call: an index into the call's table of addresses."""

    index: int


@dataclass(frozen=True)
class WordAddress:
    """The address of another word of the same block."""

    index: int


Word: TypeAlias = "int | CallAddress | WordAddress"


class Words:
    """A block of 64-bit words under construction: arguments of kernels, and addresses of them."""

    def __init__(self) -> None:
        self._words: list[Word] = []

    def put(self, words: Sequence[Word]) -> WordAddress:
        """Append `words`; the address of the first of them."""
        start = len(self._words)
        self._words += words
        return WordAddress(start)

    def finish(self) -> tuple[npt.NDArray[np.int64], list[list[int]]]:
        """The block; and, for each word that a call fills in, its address and table index."""
        memory: Any = np.zeros(len(self._words) + 1, dtype=np.int64)
        base = memory.ctypes.data
        bindings: list[list[int]] = []
        for position, word in enumerate(self._words):
            match word:
                case CallAddress(index):
                    bindings.append([base + 8 * position, index])
                case WordAddress(index):
                    memory[position] = base + 8 * index
                case int():
                    memory[position] = word
                case _:
                    assert_never(word)
        return memory, bindings
