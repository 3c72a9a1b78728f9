from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.graph.evaluation import evaluate
from adjoint.optimize import convolution_bias
from adjoint.optimize.convolution_bias import split_convolution_bias
from tests.lowering import graph_of

aten = torch.ops.aten

INPUTS = [torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.randn(4)]


def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, w, b, padding=1)


def without_bias(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, w, padding=1)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_bias, "adds_bias_apart", lambda image: True)


@pytest.mark.usefixtures("everywhere")
def test_the_bias_is_added_to_the_result() -> None:
    graph = graph_of(convolution, INPUTS)
    made = split_convolution_bias(graph)
    calls = [node.target for node in made.graph.nodes if node.op == "call_function"]
    assert calls == [aten.convolution.default, aten.view.default, aten.add.Tensor]
    (node,) = made.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert node.args[2] is None
    torch.testing.assert_close(evaluate(made, INPUTS), evaluate(graph, INPUTS))


@pytest.mark.usefixtures("everywhere")
def test_one_without_bias_stays() -> None:
    graph = graph_of(without_bias, INPUTS[:2])
    assert split_convolution_bias(graph) is graph


def test_the_library_of_a_cpu_adds_it_on_the_way() -> None:
    graph = graph_of(convolution, INPUTS)
    assert split_convolution_bias(graph) is graph
