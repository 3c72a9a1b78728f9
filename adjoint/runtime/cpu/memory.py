"""Memory of a program: where its inner tensors lie, and the words that kernels take as arguments.

Tensors that do not live at the same time share memory.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
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


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """From the step that makes it to the last that uses it."""

    first: int
    last: int
    size: int


def arrange(intervals: Mapping[Key, Interval]) -> tuple[dict[Key, int], int]:
    """An offset for each, and how many bytes there are in all.

    Each takes the tightest gap that is free while it lives; the longest lived go first where two
    begin together.
    """
    places: dict[Key, int] = {}
    alive: list[tuple[int, int, int]] = []
    total = 0
    by_start = sorted(intervals.items(), key=lambda pair: (pair[1].first, -pair[1].last))
    for key, interval in by_start:
        alive = sorted(each for each in alive if each[2] >= interval.first)
        size = -(-max(interval.size, 1) // ALIGNMENT) * ALIGNMENT
        offset = _gap(alive, size, total)
        places[key] = offset
        alive.append((offset, offset + size, interval.last))
        total = max(total, offset + size)
    return places, total


def _gap(alive: list[tuple[int, int, int]], size: int, total: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop, _ in alive:
        room = start - end
        if room >= size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    if best is not None:
        return best[1]
    return end if total - end >= 0 else total


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
