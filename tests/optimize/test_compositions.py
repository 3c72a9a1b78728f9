from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.evaluation import evaluate
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.options import Options
from tests.parity import plain

aten = torch.ops.aten


def captured(function: Any, *args: Any) -> torch.fx.GraphModule:
    return adjoint.capture(function, *args).graph_module


def test_ops_that_torch_differentiates_once_are_composed_of_others_in_bodies_too() -> None:
    def function(x: Tensor, g: Tensor) -> Tensor:
        back = aten.silu_backward(g, x)
        return torch.cond(x.sum() > 0, lambda: aten.silu_backward(back, x), lambda: back * 2)  # type: ignore[no-any-return]

    x, g = plain(3).abs(), plain(3)
    module = captured(function, x, g)
    composed = Compiler(Options()).composed(module)
    graphs = [composed, *subgraphs_of(composed).values()]
    assert len(graphs) == 3
    assert not any(
        node.target is aten.silu_backward.default for m in graphs for node in m.graph.nodes
    )
    torch.testing.assert_close(evaluate(composed, [x, g]), evaluate(module, [x, g]))
