from __future__ import annotations

import torch
from torch import Tensor

from adjoint.graph.interface import interface_of
from adjoint.graph.metadata import output_node
from adjoint.graph.purity import remove_dead_code
from tests.rewriting import graph_of


def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a + b, a.sum()


def test_how_outputs_are_computed_is_free() -> None:
    one = graph_of(both, torch.ones(3), torch.ones(3))
    other = graph_of(lambda a, b: (b * a, b.mean()), torch.ones(3), torch.ones(3))
    assert interface_of(one).difference(interface_of(other)) is None
    remove_dead_code(one.graph)
    assert interface_of(one).difference(interface_of(one)) is None


def test_what_is_different_is_named() -> None:
    before = interface_of(graph_of(both, torch.ones(3), torch.ones(3)))
    fewer = interface_of(graph_of(lambda a: (a.sin(), a.sum()), torch.ones(3)))
    assert "it changed the inputs of the graph from" in str(before.difference(fewer))
    wider = graph_of(both, torch.ones(3).double(), torch.ones(3))
    why = str(before.difference(interface_of(wider)))
    assert "it changed result[0] of the graph from f32[3] to f64[3]" in why
    nothing = graph_of(both, torch.ones(3), torch.ones(3))
    out = output_node(nothing.graph)
    out.args = ((None, *out.args[0][1:]),)  # type: ignore[index,misc]
    assert "from f32[3] to None" in str(before.difference(interface_of(nothing)))


def test_sizes_are_those_of_the_captured_call() -> None:
    one = interface_of(graph_of(both, torch.ones(3), torch.ones(3)))
    other = interface_of(graph_of(both, torch.ones(3), torch.ones(3), dynamic=True))
    assert one.difference(other) is None
