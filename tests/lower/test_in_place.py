"""New values of inputs, stored in the inputs by kernels: where that is possible, and where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adjoint.backend import adjoint as backend
from adjoint.loops.plan import Plan
from adjoint.observing import Sighting
from tests.lowering import GRID, THREADS
from tests.parity import Route, check, plain


def overwritten(function: Callable[..., Any], *inputs: Any) -> int:
    """How many inputs a kernel overwrites, in the first call of a function."""
    plans: list[Plan] = []

    def see(sighting: Sighting) -> None:
        if isinstance(sighting.value, Plan):
            plans.append(sighting.value)

    compiled = torch.compile(
        function,
        backend=lambda graph, examples: backend(
            graph, examples, options={"target": "native"}, observer=see
        ),
    )
    with torch.no_grad():
        compiled(*inputs)
    return sum(slot.replaces is not None for plan in plans for slot in plan.slots)


def double(x: Tensor, y: Tensor) -> None:
    x.mul_(2).add_(y)


def two(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    y.add_(1)
    return x + 3


def without_the_old_value(x: Tensor, y: Tensor) -> None:
    x.copy_(y.exp())


def rows(x: Tensor, y: Tensor) -> None:
    x.sub_(y.sum(1, keepdim=True))


def after_a_product(x: Tensor, y: Tensor) -> None:
    x.add_((y @ y).tanh())


def strided(x: Tensor, y: Tensor) -> None:
    x.mul_(y.t())


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (double, 1),
        (two, 2),
        (without_the_old_value, 1),
        (rows, 1),
        (after_a_product, 1),
        (strided, 1),
    ],
)
def test_each_element_is_stored_where_it_was(function: Callable[..., Any], count: int) -> None:
    assert overwritten(function, plain(6, 6), plain(6, 6)) == count
    for route in Route:
        check(function, lambda: (plain(6, 6), plain(6, 6)), route)
        check(function, lambda: (plain(6, 6).t(), plain(6, 6)), route)


def flipped(x: Tensor, y: Tensor) -> None:
    x.copy_(x.flip(0) + y)


def transposed(x: Tensor, y: Tensor) -> None:
    x.add_(x.t())


def normalized(x: Tensor, y: Tensor) -> None:
    x.div_(x.sum(1, keepdim=True))


def needed_later(x: Tensor, y: Tensor) -> Tensor:
    old = x.clone()
    x.mul_(y)
    return old.cumsum(0) @ y


def returned(x: Tensor, y: Tensor) -> Tensor:
    old = x + 0
    x.mul_(y)
    return old


def swapped(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def before_a_check(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    inverse: Tensor = torch.linalg.inv(y)
    return inverse


@pytest.mark.parametrize(
    "function", [flipped, transposed, normalized, needed_later, returned, swapped, before_a_check]
)
def test_nothing_that_is_read_later_is_overwritten(function: Callable[..., Any]) -> None:
    for route in Route:
        check(function, lambda: (plain(6, 6), plain(6, 6)), route)


def test_what_may_fail_comes_first() -> None:
    x, y = plain(3, 3), torch.zeros(3, 3, dtype=torch.float64)
    before = x.clone()
    compiled = torch.compile(before_a_check, backend="adjoint")
    with pytest.raises(RuntimeError, match="singular"), torch.no_grad():
        compiled(x, y)
    assert torch.equal(x, before)


def overlapping() -> tuple[Tensor, Tensor]:
    whole = plain(5, 4)
    return whole[1:], whole[:4]


def test_inputs_that_share_memory_stay_apart() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    for route in Route:
        check(function, lambda: (plain(4, 4), plain(4, 4)), route)
        check(function, overlapping, route)


def test_an_inference_tensor_is_written_in_inference_mode() -> None:
    compiled = torch.compile(double, backend="adjoint")
    with torch.inference_mode():
        x, y = plain(4), plain(4)
        expected = x * 2 + y
        compiled(x, y)
        assert torch.equal(x, expected)


def test_a_recorded_write_ends_the_history() -> None:
    def function(x: Tensor, y: Tensor) -> None:
        x.copy_(y * 2)

    leaves = [plain(3).requires_grad_() for _ in range(2)]
    for leaf, run in zip(
        leaves, (function, torch.compile(function, backend="adjoint")), strict=True
    ):
        x = leaf * 1
        run(x, torch.ones(3, dtype=torch.float64))
        x.sum().backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def test_autograd_saves_the_old_value() -> None:
    """The input is saved for the gradient of `y`, so the write goes elsewhere."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        result = x * y
        with torch.no_grad():
            x.add_(1)
        return result

    check(function, lambda: (plain(3), plain(3).requires_grad_()), order=2)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": lambda params: torch.optim.Adam(params, foreach=False, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, 1e-2, momentum=0.9, nesterov=True),
    "plain sgd": lambda params: torch.optim.SGD(params, 1e-2, foreach=False, weight_decay=0.1),
    "rmsprop": lambda params: torch.optim.RMSprop(params, 1e-2, momentum=0.1),
    "adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:Profiler function")
def test_the_step_of_an_optimizer(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """With Dynamo alone as the oracle: it counts steps by a float32 tensor, eager by a number."""

    def trained(backend: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        optimizer = make(model.parameters())
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 5, dtype=torch.float64)).square().sum().backward()
            step()
        return list(model.parameters())

    for ours, other in zip(trained("adjoint"), trained("eager"), strict=True):
        # Powers of the number of steps are float32.
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-8)
        assert ours._version == other._version
        assert ours.is_leaf
        assert ours.requires_grad


def test_a_gpu_lays_out_its_results() -> None:
    assert THREADS.writes_in_place
    assert not GRID.writes_in_place
