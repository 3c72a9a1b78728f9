from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.graph.origins import origins_of
from adjoint.loops.show import show_plan as shown
from adjoint.lower.value_numbering import merge_equal_values
from tests.lowering import THREADS, check, graph_of, lower

aten = torch.ops.aten


def test_common_subexpressions_are_computed_once() -> None:
    def function(g: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [aten.sigmoid_backward(g, y) @ y, (g * (1 - y) * y).sin() @ y]

    x, y = torch.rand(2, 6, 6, dtype=torch.float64)
    check(function, x, y)
    one, other = (
        (lambda x: [(x + 1) @ x, (x + 1) @ x.t()]),
        (lambda x: [x + 1, (x + 1).split(2)[0]]),
    )
    assert shown(lower(graph_of(one, [x]))).count(" + 1.0") == 1
    first, second = check(other, x)([x])
    assert first.data_ptr() != second.data_ptr(), "two that are returned are two"


def targets_after(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    """The operators that are left."""
    module = merge_equal_values(graph_of(function, inputs), THREADS)
    module.graph.lint()
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_different_operators_that_compute_the_same_elements_are_merged() -> None:
    x = torch.rand(4, 4)
    merged = targets_after(lambda x: (x[1:] * 2).sum() + (2 * x[1:]).sin().sum(), x)
    assert merged.count(aten.mul.Tensor) == 1
    chained = targets_after(lambda x: (x * 2).sin().sum() + (2 * x).sin().cos().sum(), x)
    assert chained.count(aten.sin.default) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x[1:] * 2).sum() + (x[:-1] * 2).sin().sum(),
        lambda x: (x.t() * 2).sum() + (x * 2).sin().sum(),
        lambda x: (x * 2.0).sum() + (x * -2.0).sin().sum(),
        lambda x: [x * 2, 2 * x],
        lambda x: (x * 2).sum() + (x.double() * 2).sum(),
    ],
)
def test_other_elements_and_two_results_stay_two(function: Callable[..., Any]) -> None:
    assert targets_after(function, torch.rand(4, 4)).count(aten.mul.Tensor) == 2


def test_what_is_left_has_the_origins_of_both() -> None:
    graph = graph_of(lambda x: (x * 2).sum() + (2 * x).sin().sum(), [torch.rand(4)]).graph
    first, second = (node for node in graph.nodes if node.target is aten.mul.Tensor)
    origins = {*origins_of(first), *origins_of(second)}
    assert graph.owning_module is not None
    merge_equal_values(graph.owning_module, THREADS)
    assert {*origins_of(first)} == origins
