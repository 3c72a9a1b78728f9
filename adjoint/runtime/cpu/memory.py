"""Memory of a program: where its inner tensors lie, and the words that kernels take as arguments.

Tensors that do not live at the same time share memory.
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

from adjoint.torch_private.storages import Holders

# Kernels load whole cache lines.
ALIGNMENT = 64

# Where the system does not say: most machines have this much or more.
USUAL_CACHE = 1 << 20


@functools.cache
def cache_bytes() -> int:
    """What each core has in its second cache."""
    said = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    text = said.read_text().strip() if said.exists() else ""
    return int(text[:-1]) * 1024 if text.endswith("K") else USUAL_CACHE


# Said wherever memory is taken: a context around a call may say otherwise.
CPU = torch.device("cpu")

# The largest block from which the C library learns (32 MiB with its own header).
LEARNT = 31 << 20


@functools.cache
def keep_freed_memory() -> None:
    """What the operators between kernels free, they get back at their next call.

    The C library hands large blocks back to the system, and each page of the next one is a fault;
    what counts as large, it learns from the largest block that was ever freed.  So one is freed, of
    which no page was touched.
    """
    torch.empty(LEARNT, dtype=torch.uint8, device=CPU)


# Programs that die before what they leave goes back to the system: to look for it takes some
# milliseconds.
DEATHS = 32

_COUNTED = itertools.count(1)


def share() -> npt.NDArray[np.uint8]:
    """What a program holds so that memory comes back after it and others like it.

    What they leave is small and lies between what stays: the C library keeps such memory unless it
    is asked.  The garbage collector does not go through arrays, so that this one dies when the
    program is taken apart, and not, as finalizers run, before anything is freed.
    """
    held = np.empty(0, dtype=np.uint8)
    weakref.finalize(held, _died).atexit = False
    return held


def _died() -> None:
    if next(_COUNTED) % DEATHS == 0:
        give_back()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """What is free goes back to the system, where the C library can."""
    trim = _trim()
    if trim is not None:
        trim(0)


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """From the step that makes it to the last that uses it."""

    first: int
    last: int
    size: int


def arrange(intervals: Mapping[Key, Interval]) -> tuple[dict[Key, int], int]:
    """An offset for each, and how many bytes there are in all.

    Each takes the tightest gap that is free while it lives.  They come as they begin, the longest
    lived first; if small ones among them stand in the way of large ones, by size.
    """
    by_start = sorted(intervals.items(), key=lambda pair: (pair[1].first, -pair[1].last))
    places, total = _placed(by_start)
    if total > _most_at_once(intervals.values()):
        others, less = _placed(sorted(by_start, key=lambda pair: -pair[1].size))
        if less < total:
            return others, less
    return places, total


def _placed(intervals: Sequence[tuple[Key, Interval]]) -> tuple[dict[Key, int], int]:
    places: dict[Key, int] = {}
    # Of those that have a place: the first step, the last, where it begins and where it ends.
    known = np.zeros((4, len(intervals)), dtype=np.int64)
    for count, (key, interval) in enumerate(intervals):
        first, last, start, stop = known[:, :count]
        near = (first <= interval.last) & (last >= interval.first)
        size = _aligned(interval.size)
        offset = _gap(sorted(zip(start[near].tolist(), stop[near].tolist(), strict=True)), size)
        places[key] = offset
        known[:, count] = (interval.first, interval.last, offset, offset + size)
    return places, int(known[3].max(initial=0))


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The tightest place between what is taken, in order; if there is none, behind all of it."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _most_at_once(intervals: Iterable[Interval]) -> int:
    """Bytes that there must be, however they lie."""
    changes: dict[int, int] = {}
    for each in intervals:
        size = _aligned(each.size)
        changes[each.first] = changes.get(each.first, 0) + size
        changes[each.last + 1] = changes.get(each.last + 1, 0) - size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


class Pool:
    """Memory for one result of a program, used again once nobody holds the result any more."""

    MOST = 4

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self._held: list[tuple[torch.Tensor, Holders]] = []

    def take(self) -> torch.Tensor:
        for tensor, holders in self._held:
            if holders.are_gone():
                # The same memory with a version count of its own, and no view of anything.
                return tensor.data
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU)
        self._held = [*self._held[-self.MOST + 1 :], (made, Holders(made))]
        return made.data


@dataclass(frozen=True)
class Entering:
    """An address that is known only in a call: an entry of the table of those that enter."""

    place: int


@dataclass(frozen=True)
class At:
    """The address of a word."""

    word: int


Word: TypeAlias = "int | Entering | At"


class Words:
    """Memory of 64-bit words that may hold addresses of one another."""

    def __init__(self) -> None:
        self._words: list[Word] = []

    def put(self, words: Sequence[Word]) -> At:
        """Add `words`; where the first of them is."""
        start = len(self._words)
        self._words += words
        return At(start)

    def finish(self) -> tuple[npt.NDArray[np.int64], list[list[int]]]:
        """The memory; and, for each word that a call fills in, its address and entry."""
        memory: Any = np.zeros(len(self._words) + 1, dtype=np.int64)
        base = memory.ctypes.data
        bindings: list[list[int]] = []
        for place, word in enumerate(self._words):
            if isinstance(word, Entering):
                bindings.append([base + 8 * place, word.place])
            else:
                memory[place] = base + 8 * word.word if isinstance(word, At) else word
        return memory, bindings
