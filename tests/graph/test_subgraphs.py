from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from adjoint.graph.subgraphs import body_of, subgraph_of, subgraphs_of


def negate() -> GraphModule:
    graph = Graph()
    graph.output(graph.call_function(torch.ops.aten.neg.default, (graph.placeholder("a"),)))
    return GraphModule(torch.nn.Module(), graph)


def test_subgraphs_are_listed_once_in_order_of_use() -> None:
    root = torch.nn.Module()
    root.first, root.second, root.unused = negate(), negate(), negate()
    root.register_buffer("constant", torch.ones(2))
    root.inner = torch.nn.Module()
    root.inner.deep = deep = negate()
    graph = Graph()
    names = ["second", "constant", "first", "second", "inner.deep"]
    nodes = [graph.get_attr(name) for name in names]
    graph.output(tuple(nodes))
    module = GraphModule(root, graph)
    assert list(subgraphs_of(module)) == ["second", "first", "inner.deep"]
    assert subgraphs_of(module)["inner.deep"] is deep
    assert subgraph_of(module, nodes[1]) is None


def test_a_call_is_not_a_subgraph() -> None:
    module = negate()
    assert [subgraph_of(module, node) for node in module.graph.nodes] == [None] * 3


def test_the_body_that_a_node_names() -> None:
    root = torch.nn.Module()
    root.body = body = negate()
    root.register_buffer("constant", torch.ones(2))
    graph = Graph()
    nodes = [graph.get_attr(name) for name in ("body", "constant")]
    graph.output(tuple(nodes))
    module = GraphModule(root, graph)
    assert body_of(module, nodes[0]) is body
    with pytest.raises(AssertionError, match="constant does not refer to a graph"):
        body_of(module, nodes[1])
