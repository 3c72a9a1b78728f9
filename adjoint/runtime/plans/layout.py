"""The layout of temporaries in memory: those with disjoint lifetimes share it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

# Kernels load whole cache lines.
ALIGNMENT_BYTES = 64

# No temporary can be larger: addresses have 48 bits.  Nor does a sum of sizes overflow then.
MAX_TEMPORARY_BYTES = 1 << 48

# Memory that grows is allocated this many times as large, so that growing sizes rarely allocate.
GROWTH_FACTOR = 1.25

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Lifetime:
    """A temporary: the step that writes it first, the last step that uses it, and its bytes."""

    first: int
    last: int
    size: int


def assign_offsets(
    lifetimes: Mapping[Key, Lifetime], alignment: int = ALIGNMENT_BYTES
) -> tuple[dict[Key, int], int]:
    """An offset for each temporary, and the total number of bytes.

    Best fit: each takes the tightest gap that is free during its lifetime, in the order of first
    steps, longest lifetimes first.  If that needs more than the peak of live bytes, placing the
    largest first is tried, too.  The native interpreter does the same (`interpreter.py`).
    """
    blocks = [
        Lifetime(each.first, each.last, _aligned(each.size, alignment))
        for each in lifetimes.values()
    ]
    spans = [(each.first, each.last) for each in blocks]
    order = placing_order(spans)
    offsets, total = _best_fit(blocks, order)
    if total > _peak_live_bytes(blocks, events_of(spans)):
        by_size = sorted(order, key=lambda place: -blocks[place].size)
        others, less = _best_fit(blocks, by_size)
        if less < total:
            offsets, total = others, less
    return dict(zip(lifetimes, offsets, strict=True)), total


def bytes_of_layout(spans: Sequence[tuple[int, int, int]]) -> int:
    """The bytes that temporaries need, given the first step, last step and bytes of each."""
    return assign_offsets({place: Lifetime(*span) for place, span in enumerate(spans)})[1]


def grown(count: int, have: int) -> int:
    """How many bytes to allocate for `count`, where `have` were not enough."""
    return max(count, min(int(have * GROWTH_FACTOR), 2 * count))


def placing_order(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The order of first steps, longest lifetimes first."""
    return sorted(range(len(spans)), key=lambda place: (spans[place][0], -spans[place][1]))


def events_of(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where lifetimes end and begin, in the order of steps: -place - 1 and place + 1."""
    ends = [(last + 1, 0, -place - 1) for place, (_, last) in enumerate(spans)]
    starts = [(first, 1, place + 1) for place, (first, _) in enumerate(spans)]
    return [event for _, _, event in sorted([*ends, *starts])]


def _best_fit(blocks: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, Lifetime]] = []
    for place in order:
        block = blocks[place]
        taken = sorted(
            (start, stop)
            for start, stop, other in placed
            if other.first <= block.last and other.last >= block.first
        )
        offsets[place] = start = _tightest_gap(taken, block.size)
        placed.append((start, start + block.size, block))
    return offsets, max((stop for _, stop, _ in placed), default=0)


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


def _peak_live_bytes(blocks: Sequence[Lifetime], events: Sequence[int]) -> int:
    """The most bytes that are live in one step: a lower bound of the memory needed."""
    live = peak = 0
    for event in events:
        live += blocks[event - 1].size if event > 0 else -blocks[-event - 1].size
        peak = max(peak, live)
    return peak


def _aligned(size: int, alignment: int) -> int:
    return -(-max(size, 1) // alignment) * alignment
