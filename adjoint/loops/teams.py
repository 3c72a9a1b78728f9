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
    return _whole(count, team)


def block_of(team: int) -> int:
    """How many threads a block has: teams of more than a warp meet in its memory, one a block."""
    return team if team > WARP else BLOCK


# Neighbours that lie in memory side by side, and are read and written at a time.
QUAD = 4

# A warp of a product is so many threads high and wide.
HEIGHT = 4
WIDTH = 8


# With so many tiles, a machine of very many threads is busy.
MANY_TILES = 128

# Small tiles read the same again and again: they are good for no more multiplications.
MOST_IN_SMALL_TILES = 1 << 27


@dataclass(frozen=True)
class Tile:
    """The part of a matrix product that a team computes.

    Each thread has some quads of rows times some quads of columns in its registers.
    """

    rows: int
    columns: int
    own: tuple[int, int]
    """The rows and columns of a thread."""
    depth: int
    """How much of what is summed over a team has at hand at a time."""
    along: bool
    """Neighbours of the right matrix lie along what is summed over, not along its columns."""

    @property
    def warps(self) -> tuple[int, int]:
        rows, columns = self.own
        return self.rows // (HEIGHT * rows), self.columns // (WIDTH * columns)

    @property
    def team(self) -> int:
        high, wide = self.warps
        return WARP * high * wide


def tile_of(rows: int, columns: int, inner: int, along: bool = False) -> Tile | None:
    """For a product of that size; None: it has none that is good.

    Threads that have much in registers wait less for shared memory.  With few tiles they would wait
    for the rest of memory instead: then tiles are small and many, and ask for much at a time.
    """
    width = 128 if columns > 64 else 64 if columns > 32 else 32
    height = 128 if width == 128 else 256
    if _whole(rows, height) * _whole(columns, width) >= MANY_TILES:
        return Tile(height, width, (8, 8 if width > 32 else 4), 8, along)
    small = Tile(32, min(width, 64), (4, 4), min(32, _whole(inner, 8) * 8), along)
    return small if rows * columns * inner <= MOST_IN_SMALL_TILES else None


def _whole(count: int, by: int) -> int:
    """How many of that size hold all."""
    return -(-count // by)
