from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from adjoint.graph.verify import verify
from adjoint.optimize.uniform import fold_uniform_values, uniform_value
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
FULL = aten.full.default
VECTOR = torch.tensor([0.0, -1.0, float("nan"), float("inf")])


def folded(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    module = graph_of(function, *inputs)
    made = fold_uniform_values(module)
    verify(made)
    assert_same(module, made, *inputs)
    return targets(made)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a**0,
        lambda a: torch.full((4,), 0.1) * torch.full((4,), 3.0) + 1,
        lambda a: torch.ones(4).to(torch.bfloat16) / 3,
        lambda a: aten._to_copy(torch.ones(4), dtype=torch.bfloat16, device=a.device) / 3,
        lambda a: torch.where(torch.ones(4, dtype=torch.bool), torch.zeros(4) - 1, torch.ones(4)),
        lambda a: -torch.zeros(2, 2).view(4),
        lambda a: torch.ones(4, dtype=torch.int64) + 3,
    ],
)
def test_what_is_one_number_is_computed_at_once(function: Callable[..., Any]) -> None:
    assert folded(function, VECTOR) == [FULL]


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * 0,
        lambda a: a**0.5,
        lambda a: torch.zeros(4) * a,
        lambda a: torch.ones(4).exp() + a,  # eager's exp on another device may round otherwise
        lambda a: torch.arange(4) + 1,
    ],
)
def test_what_is_not(function: Callable[..., Any]) -> None:
    assert folded(function, VECTOR) == targets(graph_of(function, VECTOR))


def test_the_number_of_a_tensor_is_rounded_to_its_dtype() -> None:
    def function(a: Tensor) -> Any:
        half = torch.full((4, 1), 0.1, dtype=torch.bfloat16).expand(4, 3).t()[1:]
        return half + 1, torch.zeros(2).bool(), a.new_full((3,), 7) + a[:3]

    graph = graph_of(function, VECTOR).graph
    known = [uniform_value(node) for node in graph.nodes if node.op == "call_function"]
    assert torch.tensor(0.1, dtype=torch.bfloat16).item() in known
    assert 7.0 in known
    (given,) = graph.find_nodes(op="placeholder")
    assert isinstance(given, fx.Node)
    assert uniform_value(given) is None
    assert uniform_value(2.5) == 2.5
    assert uniform_value([1]) is None
