from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.lower.planning import lower
from tests.lowering import check, graph_of, launches


def kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    check(function, *inputs)
    return len(launches(lower(graph_of(function, inputs))))


X = torch.randint(-3, 4, (6, 8), generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    ("function", "count"),
    [
        # Chains, and several results.
        (lambda x: ((x + 1) * 2).exp(), 1),
        (lambda x: [x + 1, (x + 1) * x], 1),
        # A sum of rows, what is made of it, and what is made of both.
        (lambda x: x.sum(1), 1),
        (lambda x: (x * 2).sum(1).exp(), 1),
        (lambda x: x - x.mean(1, keepdim=True), 1),
        (lambda x: (x - x.amax(1, keepdim=True)).exp().sum(1), 1),
        (lambda x: x.softmax(1), 1),
        # Sums over rows and over all, beside what they sum.
        (lambda x: [x.exp(), x.exp().sum(0), x.exp().sum()], 1),
        # Views in between.
        (lambda x: ((x + 1).reshape(2, 3, 8) * 2).sum(2), 1),
        (lambda x: (x + 1).reshape(-1) * 2, 1),
        # What is known only after the loop is used by another.
        (lambda x: x - x.sum(), 2),
        (lambda x: x - x.sum(0), 2),
        # Elements that are not at hand.
        (lambda x: (x + 1).exp().flip([1]) + x, 2),
        (lambda x: (x + 1)[1:] * 2, 2),
        # A call in between.
        (lambda x: ((x + 1) @ (x + 1).t()).exp(), 2),
        (lambda x: (x + 1).cumsum(0) + (x + 1), 2),
    ],
)
def test_how_many_kernels(function: Callable[..., Any], count: int) -> None:
    assert kernels(function, X) == count


def test_a_group_is_not_fused_with_what_needs_it_through_a_call() -> None:
    """x + 1 is needed by the sort, which is needed by the product: no cycle."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        z = y.sort(1).values
        return [y * z, y * 3]

    assert kernels(function, X) == 2


def test_an_index_is_not_made_by_the_kernel_that_reads_with_it() -> None:
    index = torch.tensor([0, 1, 2])
    assert kernels(lambda x, i: x[(i + 1) % 2] * 2, X, index) == 2


def test_two_reductions_along_different_dimensions() -> None:
    assert kernels(lambda x: [x.sum(0), x.sum(1)], X) == 1


def test_rows_of_different_lengths_are_apart() -> None:
    function = lambda x: [x.sum(1), x.reshape(12, 4).sum(1)]  # noqa: E731
    assert kernels(function, X) == 2


def test_many_items_are_several_kernels() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * number for number in range(100)]

    assert kernels(function, X) >= 3
