from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.lower.fusion import LARGE_GROUP_ELEMENTS
from tests.lowering import GRID, check, graph_of, launches, lower

aten = torch.ops.aten


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
        (lambda x: (x + 1).exp()[1:] * 2, 2),
        # They cost little to compute on the spot.
        (lambda x: (x + 1)[1:] * 2, 1),
        (lambda x: (x[0] * 2) * x.exp(), 1),
        (lambda x: x.exp() / -(x[0, 0] / x[0, 1]), 1),
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


def test_many_items_are_several_kernels() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * number for number in range(100)]

    assert kernels(function, X) >= 3


def by_class(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, 1).gather(1, target.unsqueeze(1))


def test_an_element_of_the_row_is_computed_where_it_is_read() -> None:
    """Only the losses are stored, and not what they are picked from."""
    target = torch.arange(6)
    assert kernels(by_class, X, target) == 1
    (launch,) = launches(lower(graph_of(by_class, (X, target)), GRID))
    written = [b for b in launch.kernel.buffers if b.written]
    assert len(written) == 1
    assert kernels(lambda x, i: x.softmax(1).gather(1, i[:, None]).log() + 1, X, target) == 1


def test_an_element_of_another_row_is_read_from_memory() -> None:
    function = lambda x, i: x.log_softmax(1)[i, i]  # noqa: E731
    assert kernels(function, X, torch.arange(6).flip(0)) == 2


def test_what_waits_joins_its_reader() -> None:
    """The product of x and y is needed after the call only, and is not stored before it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        early, late = x * 3, x * y
        return [(early.cumsum(0) + late).sum(1)]

    plan = lower(graph_of(function, (X, X)))
    assert kernels(function, X, X) == 2
    assert [sum(b.written for b in each.kernel.buffers) for each in launches(plan)] == [1, 1]


def test_groups_that_meet_in_an_item_are_one() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) * y.square().sum(1, keepdim=True)

    assert kernels(function, X, X + 1) == 1


def test_groups_with_a_call_between_them_stay_two() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(1)
        return y * y.cumsum(0).exp().sum(1, keepdim=True)

    assert kernels(function, X) == 2


def test_cross_entropy_reads_logits_and_writes_their_gradient() -> None:
    """Once forwards, once backwards, and nothing else of that size is in memory."""
    logits, target = torch.randn(64, 48).bfloat16(), torch.arange(64) % 48
    target[3] = -100

    def forward(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        log_p = aten._log_softmax.default(x.float(), 1, False)
        return list(aten.nll_loss_forward.default(log_p, target, None, 1, -100))

    def backward(x: torch.Tensor, target: torch.Tensor, total: torch.Tensor) -> Any:
        log_p = aten._log_softmax.default(x.float(), 1, False)
        g = aten.nll_loss_backward.default(total / 3, log_p, target, None, 1, -100, total)
        return aten._log_softmax_backward_data.default(g, log_p, 1, torch.float32).bfloat16()

    def large(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
        check(function, *inputs, signed_zeros=False)
        plan = lower(graph_of(function, inputs), GRID)
        sizes = {slot.number: slot.shape for slot in plan.slots}
        return [
            f"{buffer.dtype} {'written' if buffer.written else 'read'}"
            for launch in launches(plan)
            for buffer, operand in zip(launch.kernel.buffers, launch.operands, strict=True)
            if isinstance(operand, int) and sizes[operand] == (64, 48)
        ]

    assert large(forward, logits, target) == ["torch.bfloat16 read"]
    total = torch.tensor(63.0)
    found = large(backward, logits, target, total)
    assert found == ["torch.bfloat16 read", "torch.bfloat16 written"]


def test_groups_that_share_a_trifle_stay_apart_where_memory_is_what_counts() -> None:
    x, y, i = (
        torch.randn(LARGE_GROUP_ELEMENTS // 64, 64),
        torch.randn(LARGE_GROUP_ELEMENTS // 64, 64),
        torch.arange(LARGE_GROUP_ELEMENTS // 64),
    )

    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        # Each sum is made of tensors of its own, which it also stores.
        a, b = x[i] * x, y[i] * y
        return [a, b, a.sum(1) + b.sum(1)]

    plan = lower(graph_of(function, (x, y, i)), GRID)
    assert len(launches(plan)) == 2
    few = x[:64], y[:64], i[:64]
    assert len(launches(lower(graph_of(function, few), GRID))) == 1
    check(function, *few)
