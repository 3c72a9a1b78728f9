"""How teams of threads lie in the blocks of a GPU."""

from __future__ import annotations

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
