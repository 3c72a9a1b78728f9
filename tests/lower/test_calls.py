from __future__ import annotations

import torch
from torch import fx

import adjoint
from adjoint.lower.calls import is_returned, is_view, may_alias, needs_of_call
from tests.lowering import graph_of

aten = torch.ops.aten
X = torch.randn(4, 4)


def nodes_of(graph_module: fx.GraphModule) -> dict[str, fx.Node]:
    return {node.name: node for node in graph_module.graph.nodes}


def test_views_share_memory_and_products_write_where_they_are_told() -> None:
    found = nodes_of(graph_of(lambda x: [x.t() @ x, x.flip(0), x.reshape(16)], (X,)))
    assert is_view(found["t"])
    assert may_alias(found["t"])
    assert not may_alias(found["mm"])
    assert not may_alias(found["flip"])
    view = next(node for name, node in found.items() if "view" in name)
    assert may_alias(view)


def test_what_may_copy_is_no_view() -> None:
    """Such as a cast that returns its argument if nothing is to be cast."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    for op in (
        aten.to.dtype,
        aten.reshape.default,
        aten.contiguous.default,
        aten.flatten.using_ints,
    ):
        node = graph.call_function(op, (x,))
        assert may_alias(node)
        assert not is_view(node)


def test_a_cast_in_a_graph_is_computed_in_every_call() -> None:
    @adjoint.graph_pass("casts-by-to", "post")
    def casts_by_to(graph_module: fx.GraphModule) -> fx.GraphModule:
        for node in graph_module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
            node.target, node.args, node.kwargs = aten.to.dtype, (node.args[0], torch.int64), {}
        return graph_module

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() > 0).to(torch.int64).cumsum(1)

    compiled = adjoint.compile(function, passes=[casts_by_to])
    for scale in (1, -1, 2):
        torch.testing.assert_close(compiled(X * scale), function(X * scale))


def test_a_call_needs_what_its_views_are_of() -> None:
    found = nodes_of(graph_of(lambda x: [(x * 2).t() @ x], (X,)))
    assert needs_of_call(found["mm"]) == {found["mul"], next(iter(found.values()))}


def test_what_a_view_that_is_returned_shares_is_returned() -> None:
    found = nodes_of(graph_of(lambda x: [(x * 2).t(), (x * 3).sum()], (X,)))
    assert is_returned(found["mul"])
    assert not is_returned(found["mul_1"])
