"""Philox4x32-10: random numbers that are a function of a key and a counter, and of nothing else.

Any element of a random tensor can so be computed by itself, in any order and by any thread.  It is
the generator of torch's own for GPUs (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011).
"""

from __future__ import annotations

from typing import Any, TypeAlias

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

LAST_32 = 0xFFFFFFFF

Integer: TypeAlias = Any
"""A Python integer, or an int64 tensor: products of words are taken modulo 2**64."""


def words(key: Integer, high: Integer, low: Integer) -> tuple[Integer, Integer, Integer, Integer]:
    """Four numbers of 32 bits for a key of 64 bits and a counter of 128."""
    k0, k1 = key & LAST_32, (key >> 32) & LAST_32
    c0, c1 = low & LAST_32, (low >> 32) & LAST_32
    c2, c3 = high & LAST_32, (high >> 32) & LAST_32
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & LAST_32) ^ c1 ^ k0, second & LAST_32
        c2, c3 = ((first >> 32) & LAST_32) ^ c3 ^ k1, first & LAST_32
        k0, k1 = (k0 + KEY_STEPS[0]) & LAST_32, (k1 + KEY_STEPS[1]) & LAST_32
    return c0, c1, c2, c3


def halves(key: Integer, high: Integer, low: Integer) -> tuple[Integer, Integer]:
    """The same as two numbers of 64 bits, the first word last."""
    c0, c1, c2, c3 = words(key, high, low)
    return c0 | (c1 << 32), c2 | (c3 << 32)
