from __future__ import annotations

import pytest
import torch

from adjoint.philox import halves, words

ONES = 0xFFFFFFFFFFFFFFFF

# Of the authors: key, counter, result.  Words of the key and the counter are digits of pi, last.
KNOWN = [
    (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (ONES, ONES, ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        0x299F31D0A4093822,
        0x0370734413198A2E,
        0x85A308D3243F6A88,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "high", "low", "expected"), KNOWN)
def test_known_answers(key: int, high: int, low: int, expected: tuple[int, ...]) -> None:
    assert words(key, high, low) == expected
    first, second = halves(key, high, low)
    assert (first, second) == (expected[0] | expected[1] << 32, expected[2] | expected[3] << 32)


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@pytest.mark.parametrize(("key", "high", "low", "expected"), KNOWN)
def test_tensors_give_what_integers_give(
    key: int, high: int, low: int, expected: tuple[int, ...]
) -> None:
    counters = torch.tensor([signed(high), 7, signed(ONES)])
    found = words(torch.tensor(signed(key)), counters, torch.tensor(signed(low)))
    assert tuple(int(word[0]) for word in found) == expected
    for place, counter in enumerate(counters.tolist()):
        one = halves(signed(key), counter, signed(low))
        many = halves(torch.tensor(signed(key)), counters, torch.tensor(signed(low)))
        assert [int(half[place]) for half in many] == [signed(each) for each in one]
