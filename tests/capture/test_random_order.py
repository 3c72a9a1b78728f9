"""Random numbers are drawn in the order of the program, whatever is drawn and whatever is fused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.parity import Route, check, leaf


class Noisy(torch.autograd.Function):
    """Draws in both halves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (noise,) = ctx.saved_tensors
        return cotangents[0] * noise * torch.rand_like(noise)


def unrecorded(draw: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def under_no_grad(x: Tensor) -> Tensor:
        with torch.no_grad():
            return draw(x)

    return under_no_grad


def branch(x: Tensor) -> Tensor:
    # Eager draws again in the backward of a branch: its gradient would be that of other numbers.
    def one(x: Tensor) -> Tensor:
        return x.cos() + torch.rand_like(x)

    def other(x: Tensor) -> Tensor:
        return x + torch.randn_like(x)

    return torch.cond(x.sum() > 0, one, other, (x,))  # type: ignore[no-any-return]


# Each makes of a 2 x 3 tensor another.
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal_": lambda x: x.clone().normal_(),
    "uniform_": lambda x: x.clone().uniform_(),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.4),
    "exponential_": lambda x: x.clone().exponential_(),
    "log_normal_": lambda x: unrecorded(lambda y: y.clone().log_normal_())(x),
    "geometric_": lambda x: x.clone().geometric_(0.4),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "in_a_view": lambda x: _filled_in_part(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout_in_place": lambda x: F.dropout(x * 2, 0.5, inplace=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4),
    "feature_dropout": lambda x: F.dropout1d(x, 0.4),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.4),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(2, 3, dtype=x.dtype),
    "randn_like": lambda x: x * torch.randn_like(x),
    "randint": lambda x: x * torch.randint(1, 5, (2, 3)),
    "randint_like": lambda x: x * torch.randint_like(x, 1, 5),
    "randperm": lambda x: x[:, torch.randperm(3)],
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(3), 3)],
    "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    "normal": lambda x: x + torch.normal(x.detach(), 1.0),
    "unrecorded": unrecorded(lambda x: F.dropout(x, 0.5)),
    "custom_function": lambda x: Noisy.apply(x),  # type: ignore[no-untyped-call]
    "cond": branch,
    "dead": lambda x: _drawn_for_nothing(x),
    "dead_in_a_view": lambda x: _filled_for_nothing(x),
    "multiplied": lambda x: x @ torch.rand(3, 3, dtype=x.dtype),
}


def _filled_in_part(x: Tensor) -> Tensor:
    y = x * 3
    y[:, 1].uniform_()
    return y


def _drawn_for_nothing(x: Tensor) -> Tensor:
    torch.rand(2)
    return x.sin()


def _filled_for_nothing(x: Tensor) -> Tensor:
    (x * 3)[:, 1].normal_()
    return x.sin()


def mixture(seed: int) -> Callable[[Tensor], list[Tensor]]:
    """A program of several draws, of which some are returned."""
    chosen = random.Random(seed)
    names = [chosen.choice(list(DRAWS)) for _ in range(chosen.randint(3, 7))]
    sources = [chosen.randint(0, place) for place in range(len(names))]
    kept = sorted(chosen.sample(range(len(names)), chosen.randint(1, len(names))))

    def program(x: Tensor) -> list[Tensor]:
        values = [x]
        for name, source in zip(names, sources, strict=True):
            values.append(DRAWS[name](values[source]))
        return [values[place + 1].sum() if place % 2 else values[place + 1] for place in kept]

    program.__name__ = "_".join(names)
    return program


QUICK = ("normal_", "in_a_view", "dead_in_a_view", "randint_like", "custom_function", "cond")


@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in DRAWS],
)
def test_a_draw_before_and_after_another(first: str) -> None:
    def program(x: Tensor) -> Any:
        return DRAWS[first](x), F.dropout(x, 0.5), x.clone().normal_(), DRAWS[first](x * 2)

    check(program, lambda: leaf(2, 3), Route.DYNAMO)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 8 else pytest.mark.slow) for seed in range(300)]
)
def test_a_mixture(seed: int) -> None:
    check(mixture(seed), lambda: leaf(2, 3), Route.DYNAMO)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x.normal_(),
        lambda x: x.exponential_(),
        lambda x: x.bernoulli_(0.3),
        lambda x: x.log_normal_(),
        lambda x: x.uniform_(),
    ],
    ids=["normal", "exponential", "bernoulli", "log_normal", "uniform"],
)
def test_a_draw_into_a_part_that_is_not_dense(draw: Callable[[Tensor], Tensor]) -> None:
    """Eager draws for many numbers at once only where they lie one after another."""

    def program(x: Tensor) -> Tensor:
        y = x * 2
        draw(y[:, ::2])
        draw(y.t()[1:, ::3])
        return y.sin()

    check(program, lambda: leaf(17, 9), Route.DYNAMO)


def test_the_gradient_of_a_branch_that_draws_is_that_of_its_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * torch.rand_like(x), torch.sin, (x,))  # type: ignore[no-any-return]

    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    drawn = torch.compile(program, backend="adjoint")(x)
    (gradient,) = torch.autograd.grad(drawn.sum(), x)
    torch.testing.assert_close(gradient, (drawn / x).detach())
