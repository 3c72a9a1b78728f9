from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.lower.decompositions import decompose
from tests.lowering import assert_alike, graph_of
from tests.rewriting import targets

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


def test_a_softmax_is_written_out() -> None:
    made = decompose(graph_of(lambda x: [aten._softmax(x, 1, False)], [torch.ones(3, 3)]))
    assert aten._softmax.default not in targets(made)
    assert {aten.amax.default, aten.exp.default, aten.sum.dim_IntList} <= set(targets(made))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: [aten._softmax(x, 1, False)], (3, 0)),
        (lambda x: [x.sort(1)[0]], (3, 3)),
        (lambda x: [x.sin() + 1], (3, 3)),
    ],
    ids=["nothing to compute", "no composition", "simple already"],
)
def test_what_stays(
    function: Callable[[torch.Tensor], list[torch.Tensor]], shape: tuple[int, ...]
) -> None:
    graph_module = graph_of(function, [torch.ones(shape)])
    assert targets(decompose(graph_module)) == targets(graph_module)


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
