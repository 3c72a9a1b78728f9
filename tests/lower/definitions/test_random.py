from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.graph.operations import random_bits
from adjoint.lower.definitions.random import RULES
from adjoint.philox import words
from tests.lowering import check, grid_program_of, launches, program_of

SEEDS = torch.tensor([-0x123456789ABCDEF, 0x7FFFFFFFFFFFFFFE])


def bits(seeds: torch.Tensor, count: int, shape: list[int], stride: list[int]) -> torch.Tensor:
    drawn: torch.Tensor = random_bits(seeds, 3, shape, stride, count)
    return drawn


def test_there_is_a_sample_of_each_rule() -> None:
    assert set(RULES) == {random_bits}


@pytest.mark.parametrize("count", [1, 8, 24, 31, 32, 53, 63])
def test_kernels_draw_what_the_operator_does(count: int) -> None:
    """On any machine, however they go through the elements, and however those lie in memory."""
    program = check(lambda s: [bits(s, count, [5, 7, 6], [42, 6, 1])], SEEDS)
    assert len(launches(program.plan)) == 1
    check(lambda s: [bits(s, count, [5, 7, 6], [1, 30, 5]), s.sum()], SEEDS)


def test_which_numbers_they_are() -> None:
    """Words of counters, in their order: the high part is the place, the low one the stream's."""
    key, start = SEEDS.tolist()
    expected = [word for block in range(3) for word in words(key, block, start + 3)]
    assert bits(SEEDS, 32, [12], [1]).tolist() == expected
    pairs = zip(expected[::2], expected[1::2], strict=True)
    assert bits(SEEDS, 63, [6], [1]).tolist() == [(low | high << 32) >> 1 for low, high in pairs]
    assert bits(SEEDS, 24, [12], [1]).tolist() == [word >> 8 for word in expected]


def test_layout_does_not_matter() -> None:
    plain = bits(SEEDS, 24, [4, 6], [6, 1])
    assert torch.equal(bits(SEEDS, 24, [4, 6], [1, 4]), plain)
    assert bits(SEEDS, 24, [4, 6], [1, 4]).stride() == (1, 4)


def test_nothing_is_drawn_of_nothing() -> None:
    program = program_of(lambda s: [bits(s, 24, [0, 3], [3, 1]), s + 1], [SEEDS])
    assert program([SEEDS])[0].shape == (0, 3)


def test_an_element_is_drawn_wherever_it_is_read() -> None:
    """A shifted view has the same numbers, not new ones."""

    def neighbours(seeds: torch.Tensor) -> Any:
        drawn = bits(seeds, 24, [64], [1]).float()
        return [drawn[1:] - drawn[:-1]]

    (found,) = program_of(neighbours, [SEEDS])([SEEDS])
    (on_gpu,) = grid_program_of(neighbours, [SEEDS])([SEEDS])
    (expected,) = neighbours(SEEDS)
    assert torch.equal(found, expected)
    assert torch.equal(on_gpu, expected)
