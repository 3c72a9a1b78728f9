"""How teams of threads lie in the blocks of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32

# Threads of a block, where teams are smaller.
BLOCK = 256


# Threads of larger teams have fewer registers.
LARGE_TEAM = 256


def most_copies(team: int) -> int:
    """How often the body of a loop is written out for one thread: what it reads in one phase of a
    row stays in its registers for the next.
    """
    return 32 if team > LARGE_TEAM else 64


def turns_of(count: int, team: int) -> int:
    """How often a thread goes through a loop that its team shares out."""
    return -(-count // team)


def block_of(team: int) -> int:
    """How many threads a block has: teams of more than a warp meet in its memory, one a block."""
    return team if team > WARP else BLOCK


# Neighbours that lie in memory side by side, and are read and written at a time.
QUAD = 4

# How much of what a product sums over a team has at hand at a time.
DEPTH = 8

# A warp of a product is so many threads high and wide.
HEIGHT = 4
WIDTH = 8


@dataclass(frozen=True)
class Tile:
    """The part of a matrix product that a team computes.

    Each thread has some quads of rows times some quads of columns in its registers.
    """

    rows: int
    columns: int
    along: bool
    """Neighbours of the right matrix lie along what is summed over, not along its columns."""

    @property
    def own(self) -> tuple[int, int]:
        """The rows and columns of a thread."""
        return 8, 8 if self.columns >= 64 else 4

    @property
    def warps(self) -> tuple[int, int]:
        rows, columns = self.own
        return self.rows // (HEIGHT * rows), self.columns // (WIDTH * columns)

    @property
    def team(self) -> int:
        high, wide = self.warps
        return WARP * high * wide


def tile_of(columns: int, along: bool = False) -> Tile:
    """For a product of so many columns: about as wide as these, and for 256 threads."""
    width = 128 if columns > 64 else 64 if columns > 32 else 32
    return Tile(128 if width == 128 else 256, width, along)
