from __future__ import annotations

import torch

import adjoint
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.show import show
from adjoint.optimize.masks import narrow_masks
from adjoint.rewrite.refreshing import wrong_value

aten = torch.ops.aten


def convolution(x: torch.Tensor, weight: torch.Tensor, *places: int) -> list[torch.Tensor]:
    cotangent = torch.ones(1, 2, 4, 4)
    results = aten.convolution_backward(
        cotangent, x, weight, [2], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    )
    return [results[place] for place in places]


def masks(*places: int) -> list[list[bool]]:
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(2, 3, 3, 3)
    captured = adjoint.capture(lambda x, weight: convolution(x, weight, *places), x, weight)
    graph = captured.graph_module.graph
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    module = narrow_masks(captured.graph_module)
    # A user's pass that runs later is checked.
    assert wrong_value(module) is None
    for ours, eager in zip(module(x, weight), convolution(x, weight, *places), strict=True):
        torch.testing.assert_close(ours, eager)
    return [
        list(node.args[10])
        for node in module.graph.nodes
        if node.target is aten.convolution_backward.default
    ]


def test_only_what_is_taken_is_asked_for() -> None:
    assert masks(0) == [[True, False, False]]
    assert masks(1, 2) == [[False, True, True]]


def test_what_is_taken_stays() -> None:
    assert masks(0, 1, 2) == [[True, True, True]]


def test_the_graph_itself_stays_as_it_is() -> None:
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(2, 3, 3, 3)
    graph = adjoint.capture(lambda x, weight: convolution(x, weight, 0), x, weight).graph_module
    remove_dead_code(graph.graph)
    before = show(graph)
    assert show(narrow_masks(graph)) != before
    assert show(graph) == before
    unmasked = adjoint.capture(lambda x: x.sin(), x).graph_module
    assert narrow_masks(unmasked) is unmasked
