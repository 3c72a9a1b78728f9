from typing import Any

import pytest
import torch
from torch.nn.functional import embedding_bag

from tests.rules.rows import is_right, real

INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 7])
OFFSETS = torch.tensor([0, 4, 4])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 4}, {"include_last_offset": True}],
    ids=["plain", "padding", "last-offset"],
)
def test_bags_have_a_second_derivative(mode: str, options: Any) -> None:
    offsets = torch.tensor([0, 4, 4, 8]) if "include_last_offset" in options else OFFSETS

    def function(weight: torch.Tensor) -> torch.Tensor:
        return embedding_bag(INDICES, weight, offsets, mode=mode, **options).sin()

    is_right(function, real(8, 3))


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_samples_have_a_second_derivative(padding: int | None) -> None:
    def function(weight: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        bags = embedding_bag(
            INDICES, weight, OFFSETS, mode="sum", per_sample_weights=weights, padding_idx=padding
        )
        return bags.sin()

    is_right(function, real(8, 3), real(8, seed=1))
