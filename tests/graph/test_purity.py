from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.graph.operations import in_order
from adjoint.graph.purity import is_never_dead, remove_dead_code

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def graph_with(target: Any, *args: Any) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(target, tuple(x if arg is ... else arg for arg in args))
    graph.output((x,))
    return graph


@pytest.mark.parametrize(
    ("target", "args", "stays"),
    [
        (aten.sin.default, (...,), False),
        (aten.rand.default, ([3],), True),
        (aten.bernoulli.p, (..., 0.5), True),
        (aten._scaled_dot_product_cudnn_attention_backward.default, (...,), False),
        (aten._assert_async.msg, (..., "no"), True),
        (_ATTENTION, (..., ..., ...), False),
        (_ATTENTION, (..., ..., ..., 0.0), False),
        (_ATTENTION, (..., ..., ..., 0.5), True),
        (in_order, (..., aten.sin.default, ...), True),
    ],
)
def test_what_goes_when_nothing_uses_it(target: Any, args: tuple[Any, ...], stays: bool) -> None:
    graph = graph_with(target, *args)
    (call,) = graph.find_nodes(op="call_function", target=target)
    assert is_never_dead(call) is stays
    remove_dead_code(graph)
    assert len(graph.find_nodes(op="call_function", target=target)) == stays


def test_inputs_stay() -> None:
    graph = torch.fx.Graph()
    graph.placeholder("unused")
    graph.output(())
    remove_dead_code(graph)
    assert len(graph.find_nodes(op="placeholder")) == 1
