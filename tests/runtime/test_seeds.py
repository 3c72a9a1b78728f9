from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from adjoint.runtime.seeds import (
    OFFSETS_PER_COUNTER,
    draws_are_captured,
    new_seeds,
    reserve_streams,
)

CPU = torch.device("cpu")


def test_the_generator_says_which_and_is_further_on_afterwards() -> None:
    torch.manual_seed(3)
    first, second = new_seeds(1, CPU), new_seeds(1, CPU)
    assert first.dtype == torch.int64
    assert first.shape == (2,)
    assert not set(first.tolist()) & set(second.tolist())
    state = torch.get_rng_state()
    third = new_seeds(1, CPU)
    torch.set_rng_state(state)
    assert torch.equal(new_seeds(1, CPU), third)
    torch.manual_seed(3)
    assert torch.equal(new_seeds(1, CPU), first)


def test_a_fork_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        new_seeds(1, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        assert new_seeds(1, CPU).device == CPU


class Counting:
    """A generator as that of a GPU: a seed, and a multiple of four."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed = seed
        self.offset = offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % OFFSETS_PER_COUNTER == 0
        self.offset = offset


@pytest.mark.parametrize(("seed", "key"), [(5, 5), ((1 << 64) - 1, -1), (1 << 63, -(1 << 63))])
def test_streams_of_a_generator_that_counts(seed: int, key: int) -> None:
    generator = Counting(seed, 8)
    given = cast("Any", generator)
    assert reserve_streams(given, 3) == (key, 2)
    assert generator.offset == 20
    assert reserve_streams(given, 1) == (key, 5)


def test_nobody_writes_down_what_a_processor_does() -> None:
    assert not draws_are_captured(CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    device = torch.device("cuda", 0)

    def test_seeds_are_what_the_generator_says(self) -> None:
        torch.cuda.manual_seed(7)
        torch.rand(5, device=self.device)
        generator = torch.cuda.default_generators[0]
        offset = generator.get_offset()
        seeds = new_seeds(2, self.device)
        assert seeds.tolist() == [7, offset // OFFSETS_PER_COUNTER]
        assert generator.get_offset() == offset + 2 * OFFSETS_PER_COUNTER

    def test_somebody_writes_down(self) -> None:
        graph, x = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
        with torch.cuda.graph(graph):
            written = draws_are_captured(self.device)
            x.add_(1)
        assert written
        assert not draws_are_captured(self.device)
