from __future__ import annotations

import math

import pytest
import torch

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.lower.decompositions import decompose
from tests.lowering import assert_alike, graph_of

aten = torch.ops.aten


@pytest.mark.parametrize("values", [[math.inf, 1.0], [-math.inf, -math.inf], [math.nan, 0.0]])
def test_special_numbers(values: list[float]) -> None:
    x = torch.tensor([values, [0.0, 1.0]], dtype=torch.float64)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            aten._softmax(x, 1, False),
            aten._log_softmax(x, 1, False),
            aten.logsumexp(x, [1]),
            aten.linalg_vector_norm(x, 2, [1]),
            aten.linalg_vector_norm(x, math.inf, [1]),
            aten.var.correction(x, [1]),
        ]

    made = decompose(graph_of(function, [x]))
    for ours, eager in zip(evaluate(made, [x]), function(x), strict=True):
        assert_alike(ours, eager, signed_zeros=False)


def test_the_graph_given_is_not_changed() -> None:
    graph_module = graph_of(lambda x: x.softmax(1), [torch.ones(3, 3)])
    before = str(graph_module.graph)
    decompose(graph_module)
    assert str(graph_module.graph) == before


def test_symbolic_sizes_are_arguments_of_simpler_operators() -> None:
    norm = torch.nn.GroupNorm(2, 4).double()
    compiled = adjoint.compile(norm, dynamic=True)
    for batch in (4, 7):
        x = torch.randn(batch, 4, 3, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x).sin().sum(), x),
            torch.autograd.grad(norm(x).sin().sum(), x),
        )
