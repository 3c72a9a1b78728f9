"""Philox4x32-10, a counter-based random number generator.

Each number is a function of a key and a counter alone, so any element of a random tensor can be
computed by any thread in any order.  torch uses the same generator on GPUs (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

LOW_32 = 0xFFFFFFFF

Integer = TypeVar("Integer", int, "Tensor")
"""A Python integer, or an int64 tensor: products of words are taken modulo 2**64."""


def words(key: Integer, high: Integer, low: Integer) -> tuple[Integer, Integer, Integer, Integer]:
    """Four 32-bit words for a 64-bit key and a 128-bit counter."""
    k0, k1 = key & LOW_32, (key >> 32) & LOW_32
    c0, c1 = low & LOW_32, (low >> 32) & LOW_32
    c2, c3 = high & LOW_32, (high >> 32) & LOW_32
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & LOW_32) ^ c1 ^ k0, second & LOW_32
        c2, c3 = ((first >> 32) & LOW_32) ^ c3 ^ k1, first & LOW_32
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW_32, (k1 + KEY_STEPS[1]) & LOW_32
    return c0, c1, c2, c3


def halves(key: Integer, high: Integer, low: Integer) -> tuple[Integer, Integer]:
    """The four words as two 64-bit integers, the first word in the low bits."""
    c0, c1, c2, c3 = words(key, high, low)
    return c0 | (c1 << 32), c2 | (c3 << 32)
