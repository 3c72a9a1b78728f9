"""Where the tensors inside a program lie: those that do not live at the same time share memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

# Kernels load whole cache lines.
ALIGNMENT = 64

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
