from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adjoint.graph.evaluation import evaluate
from adjoint.optimize.softmax import recognize_softmax
from tests.differentiation import check
from tests.rewriting import calls, graph_of, targets

aten = torch.ops.aten
Function = Callable[[Tensor], Tensor]
X = torch.randn(3, 4, 5, dtype=torch.float64).requires_grad_()


def shifted(x: Tensor) -> Tensor:
    return torch.softmax(x - x.amax(-1, keepdim=True).detach(), -1)


def shifted_by_max(x: Tensor) -> Tensor:
    return torch.log_softmax(x - torch.max(x, 1, keepdim=True)[0], 1)


def written_out(x: Tensor) -> Tensor:
    power = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return power / power.sum(-1, keepdim=True)


def written_out_without_gradient(x: Tensor) -> Tensor:
    power = (x - x.amax(dim=1, keepdim=True).detach()).exp()
    return power / power.sum(dim=1, keepdim=True)


def logarithm(x: Tensor) -> Tensor:
    x = x - x.amax(-1, keepdim=True)
    return x - x.exp().sum(-1, keepdim=True).log()


FOUND = [shifted, shifted_by_max, written_out, written_out_without_gradient, logarithm]


@pytest.mark.parametrize("function", FOUND)
def test_it_becomes_one_operator(function: Function) -> None:
    module = graph_of(function, X)
    made = recognize_softmax(module)
    assert targets(made) in ([aten._softmax.default], [aten._log_softmax.default])
    (expected,), (actual,) = evaluate(module, [X]), evaluate(made, [X])
    torch.testing.assert_close(actual, expected)
    check(function, [X], 2)


def test_rows_without_a_finite_number_are_nan_as_in_eager() -> None:
    x = torch.tensor([[-math.inf, -math.inf], [math.inf, 1.0], [1.0, -math.inf], [math.nan, 0]])
    for function in FOUND:
        module = graph_of(function, x[None])
        (expected,), (actual,) = (
            evaluate(each, [x[None]]) for each in (module, recognize_softmax(module))
        )
        torch.testing.assert_close(actual, expected, equal_nan=True)


LEFT_ALONE: dict[str, Function] = {
    "no maximum, which overflows": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "maximum over another axis": lambda x: torch.softmax(x - x.amax(0, keepdim=True), -1),
    "maximum over two axes": lambda x: torch.softmax(x - x.amax((1, 2), keepdim=True), -1),
    "minimum": lambda x: torch.softmax(x - x.amin(-1, keepdim=True), -1),
    "maximum of another value": lambda x: torch.softmax(x - x.sin().amax(-1, keepdim=True), -1),
    "sum over another axis": lambda x: (
        (power := (x - x.amax(-1, keepdim=True)).exp()) / power.sum(0, keepdim=True)
    ),
    "maximum is scaled": lambda x: torch.softmax(
        torch.sub(x, x.amax(-1, keepdim=True), alpha=2), -1
    ),
}


@pytest.mark.parametrize("why", LEFT_ALONE)
def test_what_is_left_alone(why: str) -> None:
    module = graph_of(LEFT_ALONE[why], X)
    assert recognize_softmax(module) is module


def test_powers_that_something_else_reads_stay() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        power = (x - x.amax(-1, keepdim=True)).exp()
        return power / power.sum(-1, keepdim=True), power

    module = graph_of(function, X)
    assert recognize_softmax(module) is module
    assert calls(module, aten._softmax.default) == 0
