from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.differentiate.selections import with_finite_factors
from adjoint.differentiate.sweep import differentiate
from adjoint.graph.evaluation import evaluate
from adjoint.rules.registry import VJPS, vjp_rule
from tests.parity import plain

aten = torch.ops.aten

# How a formula may say that the derivative is g / x, and nothing at zero.
FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where": lambda g, x: torch.where(x == 0, 0, g * x.reciprocal()),
    "where not": lambda g, x: torch.where(x != 0, g * x.reciprocal(), 0),
    "masked_fill": lambda g, x: (g * x.reciprocal()).masked_fill(x == 0, 0),
    "masked_fill with a tensor": lambda g, x: (g * x.reciprocal()).masked_fill(
        x == 0, torch.zeros((), dtype=x.dtype)
    ),
    "quotient": lambda g, x: torch.where(x == 0, 0, g / x),
    "chain": lambda g, x: torch.where(x == 0, 0, -((g / x) * x.rsqrt()) / x.rsqrt() * -1),
    "sum": lambda g, x: torch.where(x == 0, 0, g / x + 2 * (g * x.reciprocal())) / 3,
    "branches": lambda g, x: torch.where(x == 0, g * 0 * x, g * x.reciprocal()),
    "smaller mask": lambda g, x: torch.where((x == 0).all(), 0, g * x.reciprocal()),
    "used twice": lambda g, x: _twice(g * x.reciprocal(), x),
}


def _twice(product: Tensor, x: Tensor) -> Tensor:
    return torch.where(x == 0, 0, product) / 2 + product.masked_fill(x == 0, 0) / 2


@pytest.fixture(params=FORMULAS)
def function(request: pytest.FixtureRequest) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function with one of the formulas for its derivative."""
    formula = FORMULAS[request.param]
    before = VJPS.get(aten.frac.default)
    vjp_rule(aten.frac.default)(lambda cotangent, out, x: (formula(cotangent, x),))

    # Equal functions are compiled once.
    def named(x: Tensor, name: str = request.param) -> Tensor:
        return torch.frac(x)

    yield named
    del VJPS[aten.frac.default]
    if before is not None:
        VJPS[aten.frac.default] = before


def test_what_a_formula_leaves_out_is_left_out_of_its_transpose(
    function: Callable[[Tensor], Tensor],
) -> None:
    zero, tangent = torch.zeros(2, dtype=torch.float64), plain(2).double()
    for point, expected in ((zero, zero), (zero + 4, tangent / 4)):
        _, found = adjoint.jvp(function, (point,), (tangent,))
        torch.testing.assert_close(found, expected)


def test_no_value_changes(function: Callable[[Tensor], Tensor]) -> None:
    x, g = torch.tensor([1.0, 4.0, 0.25]), plain(3)
    joint = differentiate(adjoint.capture(function, x).graph_module, [0], [0]).graph_module
    tangents = [node for node in joint.graph.nodes if node.op == "placeholder"][1:]
    _, expected = evaluate(joint, [x, g])
    for made in (with_finite_factors(joint, tangents), with_finite_factors(joint)):
        assert len(made.graph.nodes) > len(joint.graph.nodes)
        torch.testing.assert_close(evaluate(made, [x, g])[1], expected, rtol=0, atol=0)


def test_selections_of_the_program_are_transposed_as_they_are() -> None:
    """An infinite factor of what was selected is one in eager's forward mode, too."""
    x, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def program(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0) * (1 / torch.zeros_like(x))

    expected = torch.func.jvp(program, (x,), (one,))[1]
    _, found = adjoint.jvp(program, (x,), (one,))
    assert expected.isnan().all()
    assert found.isnan().all()


def test_bodies() -> None:
    x, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def program(x: Tensor) -> Any:
        return torch.cond(x.sum() > 1, lambda x: x * 2, lambda x: x.sinc() + x, (x,))

    _, found = adjoint.jvp(program, (x,), (one,))
    torch.testing.assert_close(found, one)


def test_sizes_may_be_symbols() -> None:
    for size in (2, 3, 5):
        x = torch.ones(size, 3, dtype=torch.float64)
        _, found = adjoint.jvp(lambda x: x.std(-1), (x,), (x,), dynamic=True)
        assert not found.any()
