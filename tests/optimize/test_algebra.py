from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.verify import verify
from adjoint.optimize.algebra import simplify_algebra
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
SIN, NEG, ADD, SUB, MUL = (
    aten.sin.default,
    aten.neg.default,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
)
# Numbers at which algebra that is not exact shows.
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -3e38, 3e38, 1e-45, math.inf, -math.inf, math.nan])
MATRIX = SPECIAL.expand(2, -1).clone()


def simplified(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[Any]:
    module = graph_of(function, *inputs, dynamic=dynamic)
    made = simplify_algebra(module)
    verify(made)
    assert_same(module, made, *inputs)
    assert len(made.graph.nodes) <= len(module.graph.nodes)
    return targets(made)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a: a.sin() * 1, [SIN]),
        (lambda a: 1.0 * a.sin(), [SIN]),
        (lambda a: a.sin() / 1, [SIN]),
        (lambda a: a.sin() ** 1, [SIN]),
        (lambda a: a.sin() - 0, [SIN]),
        (lambda a: a.sin() - 0.0, [SIN]),
        (lambda a: a.sin() + -0.0, [SIN]),
        (lambda a: a.sin().neg().neg(), [SIN]),
        (lambda a: a + a.sin().neg(), [SIN, SUB]),
        (lambda a: a.sin().neg() + a, [SIN, SUB]),
        (lambda a: a - a.sin().neg(), [SIN, ADD]),
        (lambda a: (a.sin() * 2.5).neg(), [SIN, MUL]),
        (lambda a: a.sin().neg() * 2.5, [SIN, MUL]),
    ],
)
def test_what_is_exact(function: Callable[..., Any], left: list[Any], dynamic: bool) -> None:
    assert simplified(function, SPECIAL, dynamic=dynamic) == left
    assert simplified(function, MATRIX, dynamic=dynamic) == left


def test_tensors_of_ones_and_zeros() -> None:
    def function(a: Tensor) -> Tensor:
        return (a.sin() * torch.ones_like(a) - torch.zeros_like(a)) / torch.ones(9)

    assert SUB not in simplified(function, SPECIAL)
    assert MUL not in simplified(function, SPECIAL)


def test_integers() -> None:
    a = torch.arange(-3, 3)
    assert simplified(lambda a: a.abs() + 0, a) == [aten.abs.default]
    assert simplified(lambda a: (a.abs() - 0) * 1, a) == [aten.abs.default]


def test_an_expansion_that_broadcasting_makes_anyway() -> None:
    def function(a: Tensor) -> Tensor:
        return a.sum(1, keepdim=True).expand(2, 9) * a.sin()

    assert aten.expand.default not in simplified(function, MATRIX)
    assert aten.expand.default not in simplified(
        lambda a: a.sin() - a.sum(0).expand(2, 9), MATRIX, dynamic=True
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.sin() + 0.0,  # 0.0 of -0.0
        lambda a: a.sin() + 0,
        lambda a: a.sin() - -0.0,
        lambda a: a.sin() * 0,
        lambda a: a.sin() - a.sin(),
        lambda a: 0 - a.sin(),
        lambda a: a.sin() * -1,  # the sign of a NaN aside, it is exact; it is one op as well
        lambda a: a.sin() * torch.ones(2, 9),  # another shape
        lambda a: a.sin() * torch.ones(9, dtype=torch.float64),  # another dtype
        lambda a: a.long() * 1.0,  # another dtype
        lambda a: torch.sub(a, a.sin().neg(), alpha=2),
        lambda a: torch.sub(a.sin(), torch.zeros(9), alpha=-1),  # adds 0.0
        lambda a: torch.add(a.sin(), torch.full((9,), -0.0), alpha=-1),
        lambda a: (a.sin() * 3).neg(),  # an integer, which eager casts
        lambda a: (b := a.sin().neg()) + (a - b),  # the negation stays in any case
        lambda a: a.sum().expand(9) * a,  # without axes it would not take part in promotion
    ],
)
def test_what_is_not(function: Callable[..., Any]) -> None:
    finite = torch.tensor([0.0, -0.0, 1.5, -2.0, 3.0, 1e-45, 7.0, 8.0, 9.0])
    assert simplified(function, finite) == targets(graph_of(function, finite))


def test_an_input_does_not_take_the_place_of_a_copy() -> None:
    """A derivative would save it, and a later write to it would be an error."""
    assert simplified(lambda a: (a * 1).sin(), SPECIAL) == [MUL, SIN]
    assert simplified(lambda a: a * 1, SPECIAL) == [MUL]


def test_an_expansion_to_a_size_that_depends_on_data_stays() -> None:
    """Whether the axis is repeated is known only in the run, and a derivative has to know it."""

    def function(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x * 2
        y[mask] = values.sin()
        return y * y

    inputs = [torch.ones(4, 3), torch.arange(4) < 2, torch.randn(2, 3)]
    module = graph_of(function, *inputs, dynamic=True)
    made = simplify_algebra(module)
    assert targets(made).count(aten.expand.default) == targets(module).count(aten.expand.default)
