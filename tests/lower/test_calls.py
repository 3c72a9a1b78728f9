from __future__ import annotations

import torch
from torch import fx

from adjoint.lower.calls import is_returned, is_view, may_alias, needs_of_call
from tests.lowering import graph_of

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


def test_a_call_needs_what_its_views_are_of() -> None:
    found = nodes_of(graph_of(lambda x: [(x * 2).t() @ x], (X,)))
    assert needs_of_call(found["mm"]) == {found["mul"], next(iter(found.values()))}


def test_what_a_view_that_is_returned_shares_is_returned() -> None:
    found = nodes_of(graph_of(lambda x: [(x * 2).t(), (x * 3).sum()], (X,)))
    assert is_returned(found["mul"])
    assert not is_returned(found["mul_1"])
