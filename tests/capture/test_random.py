from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from tests.parity import ROUTES, Route, Row, Table, check, leaf

TABLE = Table()


def one() -> Any:
    return (leaf(4, 4),)


@TABLE(one)
def draws_of_all_kinds(x: Tensor) -> Any:
    return (
        torch.rand(3),
        torch.randn(2, 2),
        torch.randint(0, 10, (3,)),
        torch.randperm(5),
        torch.bernoulli(torch.full((3,), 0.5)),
        torch.normal(0.0, torch.ones(3)),
        torch.multinomial(torch.ones(5), 3),
        torch.rand_like(x),
    )


@TABLE(one)
def draws_in_place(x: Tensor) -> Any:
    return (
        torch.empty(3).uniform_(),
        torch.empty(3).normal_(1.0, 2.0),
        torch.empty(3).bernoulli_(0.3),
        torch.empty(3).exponential_(),
    )


@pytest.mark.parametrize("fill", [lambda t: t.random_(0, 7), lambda t: t.log_normal_()])
def test_draws_in_place_that_dynamo_refuses(fill: Any) -> None:
    check(lambda x: x * fill(torch.empty(4)), one, Route.DIRECT)


@TABLE(one, order=2)
def dropouts(x: Tensor) -> Any:
    y = F.dropout(x, 0.5).sin()
    return F.alpha_dropout(y, 0.3), F.dropout(x, 0.5, training=False), F.rrelu(x, training=True)


@TABLE(one)
def attention_with_dropout(x: Tensor) -> Any:
    q = x.view(1, 1, 4, 4)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


@TABLE(one)
def a_draw_that_nothing_uses(x: Tensor) -> Any:
    torch.rand(3)
    return x * torch.rand(4)


@TABLE(lambda: (torch.zeros(3),))
def draws_into_an_input(x: Tensor) -> Any:
    x.normal_()
    return torch.rand(2) + x[:2]


@TABLE(one)
def draws_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        noise = torch.randn_like(x)
    return x + noise


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_random_numbers_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


def test_two_calls_draw_anew() -> None:
    captured = adjoint.capture(torch.rand, 3)
    torch.manual_seed(0)
    expected = [torch.rand(3), torch.rand(3)]
    torch.manual_seed(0)
    assert torch.equal(adjoint.run(captured, 3), expected[0])
    assert torch.equal(adjoint.run(captured, 3), expected[1])


def test_capturing_draws_nothing() -> None:
    before = torch.get_rng_state()
    adjoint.capture(draws_of_all_kinds, torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_users() -> None:
    generator = torch.Generator()

    def program(x: Tensor) -> Any:
        return x + torch.rand(3, generator=generator), torch.rand(3)

    x = torch.zeros(3)
    generator.manual_seed(3)
    captured = adjoint.capture(program, x)
    expected = program(x)[0]
    generator.manual_seed(3)
    assert torch.equal(adjoint.run(captured, x)[0], expected)
