"""Teams of threads on a GPU, and the tiles of matrix products that they compute."""

from __future__ import annotations

from dataclasses import dataclass

# Threads of a warp.
WARP = 32

# Threads of a block that holds several teams.
BLOCK_THREADS = 256

# Above this many threads a team has fewer registers for each.
LARGE_TEAM_THREADS = 256


def max_unrolled_copies(team: int) -> int:
    """How many copies of a loop's body one thread may have.

    What they load stays in registers between the loops over a row.
    """
    return 32 if team > LARGE_TEAM_THREADS else 64


def trips_per_thread(count: int, team: int) -> int:
    """The trip count of one thread, in a loop of `count` iterations that its team divides."""
    return _ceiling(count, team)


def threads_per_block(team: int) -> int:
    """A team of more than a warp has a block, and its shared memory, to itself."""
    return team if team > WARP else BLOCK_THREADS


# Adjacent elements that one vector instruction loads or stores: four floats.
QUAD = 4

# The arrangement of a warp's threads over a tile of a product.
WARP_ROWS = 4
WARP_COLUMNS = 8


# Large tiles that are enough for full occupancy.
MIN_LARGE_TILES = 128

# Small tiles load each element more often: beyond this many multiplications a library is faster.
MAX_SMALL_TILE_PRODUCTS = 1 << 27


@dataclass(frozen=True)
class Tile:
    """The part of a matrix product that a team computes.

    Register tiling: each thread accumulates some quads of rows times some quads of columns.
    """

    rows: int
    columns: int
    per_thread: tuple[int, int]
    """The rows and columns that one thread accumulates."""
    depth: int
    """How much of the inner dimension, k, is in shared memory at a time."""
    k_contiguous: bool
    """Whether the right matrix is contiguous along k, rather than along its columns."""

    @property
    def warps(self) -> tuple[int, int]:
        rows, columns = self.per_thread
        return self.rows // (WARP_ROWS * rows), self.columns // (WARP_COLUMNS * columns)

    @property
    def team(self) -> int:
        high, wide = self.warps
        return WARP * high * wide


def tile_of(rows: int, columns: int, inner: int, k_contiguous: bool = False) -> Tile | None:
    """The tile for a product of these sizes; None if a library is faster.

    Large tiles, with many accumulators in registers, load each element least often.  Where there
    would be too few of them to occupy the GPU, tiles are small, and deep to keep loads in flight.
    """
    width = 128 if columns > 64 else 64 if columns > 32 else 32
    height = 128 if width == 128 else 256
    if _ceiling(rows, height) * _ceiling(columns, width) >= MIN_LARGE_TILES:
        return Tile(height, width, (8, 8 if width > 32 else 4), 8, k_contiguous)
    small = Tile(32, min(width, 64), (4, 4), min(32, _ceiling(inner, 8) * 8), k_contiguous)
    return small if rows * columns * inner <= MAX_SMALL_TILE_PRODUCTS else None


def _ceiling(count: int, by: int) -> int:
    return -(-count // by)
