"""How teams of threads lie in the blocks of a GPU."""

from __future__ import annotations

WARP = 32

# Threads of a block, where teams are smaller.
BLOCK = 256


def block_of(team: int) -> int:
    """How many threads a block has: teams of more than a warp meet in its memory, one a block."""
    return team if team > WARP else BLOCK
