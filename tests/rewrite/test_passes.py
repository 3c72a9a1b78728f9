from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.errors import RewriteError
from adjoint.graph.metadata import output_node, outputs_of, value_of
from adjoint.graph.origins import for_part_of
from adjoint.passes import graph_pass
from adjoint.rewrite.passes import rules_pass
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import equation
from tests.rewriting import calls, graph_of

aten = torch.ops.aten
MATRIX = torch.ones(2, 3)
x = Wildcard("x")


def mutate(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    node.target = torch.ops.aten.exp_.default
    return graph_module


def forget(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    del node.meta["val"]
    return graph_module


def reduce(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    node.target = torch.ops.aten.sum.default
    return graph_module


def give_up(graph_module: fx.GraphModule) -> fx.GraphModule:
    reduce(graph_module)
    raise KeyError("gone")


def narrow(graph_module: fx.GraphModule) -> fx.GraphModule:
    """As `reduce`, with metadata that is right, up to the output."""
    out = output_node(graph_module.graph)
    first, *others = outputs_of(graph_module.graph)
    assert isinstance(first, fx.Node)
    with graph_module.graph.inserting_before(out):
        node = graph_module.graph.call_function(torch.ops.aten.sum.default, (first,))
    node.meta = for_part_of(first, torch.ops.aten.sum.default(value_of(first)))
    out.args = ((node, *others),)
    return graph_module


def hold_a_tensor(graph_module: fx.GraphModule) -> fx.GraphModule:
    (node,) = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    node.args = (torch.ones(3),)
    return graph_module


@pytest.mark.parametrize("place", ["primal", "joint", "post", "lowering"])
@pytest.mark.parametrize(
    ("run", "why"),
    [
        (narrow, r"changed result\[0\] of the graph from f32\[3\] to f32\[\]"),
        (hold_a_tensor, "node .* has a tensor as argument"),
        (reduce, r"the node computes f32\[\], and its metadata says f32\[3\]"),
        (give_up, "it raised KeyError: 'gone'"),
        (mutate, "node .* = aten.exp_.default.* mutates"),
        (forget, "node .* = aten.exp.default.*"),
        (lambda graph_module: None, "returned NoneType"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_an_error(run: Any, why: str, place: Any) -> None:
    """It names the pass, the node and the user's line, and the program runs without the pass."""
    torch._dynamo.reset()
    wrong = graph_pass("break-it", place)(run)

    def function(a: Tensor) -> Tensor:
        return torch.exp(a) * 2

    a = torch.ones(3, requires_grad=True)
    with pytest.raises(RewriteError, match=f"pass 'break-it'.*: .*{why}") as caught:
        adjoint.compile(function, passes=[wrong])(a)
    if "node" in why:
        assert "return torch.exp(a) * 2" in str(caught.value)
    torch.testing.assert_close(adjoint.compile(function)(a), function(a))


def test_a_pass_that_removes_an_input_is_an_error() -> None:
    """Without the tangent, gradients would be wrong."""

    @graph_pass("forget-tangents", "joint")
    def forget_tangents(graph_module: fx.GraphModule) -> fx.GraphModule:
        one, tangent = graph_module.graph.find_nodes(op="placeholder")
        tangent.replace_all_uses_with(one)
        graph_module.graph.erase_node(tangent)
        return graph_module

    with pytest.raises(RewriteError, match=r"from .*, tangent of .* to ") as caught:
        adjoint.compile(torch.exp, passes=[forget_tangents])(torch.ones(3, requires_grad=True))
    assert "'forget-tangents': it changed the inputs" in str(caught.value)


def test_a_pass_after_one_that_does_not_exist_is_refused() -> None:
    late = graph_pass("late", "joint", after="nothing")(lambda graph_module: graph_module)
    with pytest.raises(RewriteError, match="'late' comes after 'nothing', which does not run at"):
        adjoint.compile(torch.sin, passes=[late])(torch.ones(2))


def test_rules_make_a_pass() -> None:
    double = equation("double", call(aten.mul.Tensor, x, 2), call(aten.add.Tensor, x, x))
    made = rules_pass("doubling", [double], "joint", after="merge-views", meaning="x * 2 = x + x")
    assert (made.name, made.place, made.after) == ("doubling", "joint", "merge-views")
    assert made.run.__doc__ == "x * 2 = x + x"
    assert [rule.name for rule in made.rules] == ["double"]
    graph = made(graph_of(lambda a: a * 2, MATRIX))
    assert isinstance(graph, fx.GraphModule)
    assert calls(graph, aten.add.Tensor) == 1
