"""The memory of programs that run one after the other, such as a forward and a backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, chain

from typing_extensions import assert_never

from adjoint.loops.footprint import Block, Footprint, profile
from adjoint.loops.plan import SlotKind


class Keeping(Enum):
    """What programs keep between their calls."""

    OWN = "own"
    """Each program keeps the memory of its temporaries and outputs for its next call."""
    SHARED = "shared"
    """Programs share one memory for temporaries, and outputs are freed."""
    NOTHING = "nothing"
    """Memory is given back after each call."""


def keeping_of(programs: Sequence[Footprint]) -> Keeping:
    """What these programs keep."""
    if any(each.shares_memory for each in programs):
        return Keeping.SHARED
    return Keeping.NOTHING if all(each.gives_back for each in programs) else Keeping.OWN


@dataclass(frozen=True)
class Held:
    """Memory that a program allocates, and a later program reads and frees."""

    program: int
    slot: int
    until: int = 0
    """The program that frees it, if no later one reads it."""


@dataclass(frozen=True)
class ChainFootprint:
    """The memory of programs that run one after the other, such as a forward and a backward.

    What exists before, such as the first program's arguments, is not counted.
    """

    programs: tuple[Footprint, ...]
    takes: tuple[tuple[Held | None, ...], ...]
    """For each program and each of its inputs: the memory that the input has; None: it is not
    freed, or was not allocated by an earlier program."""

    @property
    def keeping(self) -> Keeping:
        return keeping_of(self.programs)

    @property
    def forward(self) -> Footprint:
        return self.programs[0]

    @property
    def starts(self) -> tuple[int, ...]:
        """The step at which each program begins, counted through all of them; then the end."""
        return (0, *accumulate(each.steps for each in self.programs))

    @property
    def reserved(self) -> int:
        """The most bytes that are reserved for temporaries at any time."""
        return max(self._reserved())

    def _reserved(self) -> list[int]:
        """The bytes that are reserved for temporaries during each program."""
        own = [each.reserved for each in self.programs]
        match self.keeping:
            case Keeping.OWN:
                return [sum(own)] * len(own)
            case Keeping.SHARED:
                return [max(own)] * len(own)
            case Keeping.NOTHING:
                return own
            case _:
                assert_never(self.keeping)

    def lifetimes(self, kept: bool = True) -> list[tuple[int, Block, int, int]]:
        """What library calls return and programs allocate: the program, the block, its first and
        its last step, counted through all programs.

        `kept`: memory that programs keep for their next call counts all the time.
        """
        starts, last = self.starts, self.last_reads()
        found: list[tuple[int, Block, int, int]] = []
        for number, (start, program) in enumerate(zip(starts, self.programs, strict=False)):
            for block in program.blocks:
                if block.kind not in (SlotKind.RESULT, SlotKind.OUTPUT):
                    continue
                if kept and self.keeping is Keeping.OWN and block.is_pooled:
                    # An earlier call has left its memory.
                    found.append((number, block, 0, starts[-1]))
                    continue
                until = starts[-1] if block.kind is SlotKind.OUTPUT else start + block.last
                until = last.get((number, block.slot), until)
                found.append((number, block, start + block.first, until))
        return found

    def profile(self) -> list[int]:
        """The bytes that are allocated at each step of all programs."""
        spans = ((first, last, block.bytes) for _, block, first, last in self.lifetimes())
        reserved = (
            [each] * program.steps
            for each, program in zip(self._reserved(), self.programs, strict=True)
        )
        allocated = profile(self.starts[-1], spans)
        return [one + other for one, other in zip(allocated, chain(*reserved), strict=True)]

    def last_reads(self) -> dict[tuple[int, int], int]:
        """For programs and slots that are freed: the last step that reads them."""
        found: dict[tuple[int, int], int] = {}
        for start, program, taken in zip(self.starts, self.programs, self.takes, strict=False):
            blocks = {block.slot: block for block in program.blocks}
            for slot, held in zip(program.inputs, taken, strict=True):
                if held is not None:
                    key = (held.program, held.slot)
                    # A block that is never read is freed when the program begins.
                    read = max(start + blocks[slot].last, self.starts[held.until] - 1)
                    found[key] = max(found.get(key, -1), read)
        return found

    @property
    def peak(self) -> int:
        """The most bytes that are allocated at any time."""
        return max(self.profile(), default=0)

    @property
    def between(self) -> int:
        """The bytes that results and saved values take between forward and backward."""
        return self.forward.returned
