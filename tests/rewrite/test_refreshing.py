from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from adjoint.graph.metadata import set_value, tensor_of
from adjoint.rewrite.refreshing import NotRefreshed, refresh_users, same_values
from adjoint.torch_private.fake import fake_mode_of
from tests.rewriting import graph_of

aten = torch.ops.aten


def relaid(function: Any, *inputs: Any) -> tuple[fx.Graph, fx.Node]:
    """The graph of a function whose first operator's result is laid out the other way round."""
    module = graph_of(function, *inputs)
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    with fake_mode_of(module):
        value = tensor_of(node)
        set_value(node, torch.empty(*reversed(value.shape)).t())
    return module.graph, node


def refreshed(graph: fx.Graph, node: fx.Node) -> int:
    with fake_mode_of(fx.GraphModule({}, graph)), torch.no_grad():
        return refresh_users(node)


def test_strides_are_computed_anew_as_far_as_they_show() -> None:
    graph, node = relaid(lambda a: a.sin().cos().sum(1).exp().exp().exp(), torch.ones(3, 4))
    # `cos`, and `sum`, whose value is as it was: nothing after it is computed.
    assert refreshed(graph, node) == 2
    assert tensor_of(next(iter(node.users))).stride() == (1, 3)


def test_a_change_of_nothing_is_computed_once() -> None:
    module = graph_of(lambda a: a.sin().cos().exp(), torch.ones(3, 4))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    assert refreshed(module.graph, node) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.sin() * 2,
        lambda a: a.sin().view(12).exp().sum(),
        lambda a: torch.rand_like(a.sin()).sum(),
    ],
    ids=["a result", "a view that needs the strides", "a draw in the order of memory"],
)
def test_what_cannot_have_other_strides(function: Any) -> None:
    graph, node = relaid(function, torch.ones(3, 4))
    before = {each: each.meta.get("val") for each in graph.nodes}
    with pytest.raises(NotRefreshed):
        refreshed(graph, node)
    assert all(each.meta.get("val") is value for each, value in before.items())


def test_values_are_alike() -> None:
    one = torch.ones(2, 3)
    assert same_values(one, torch.zeros(2, 3))
    assert same_values((one, 3), (one, 3))
    assert not same_values(one, one.double())
    assert not same_values(one, torch.ones(3, 2))
    assert not same_values(one, torch.ones(3, 2).t())
    assert same_values(one, torch.ones(3, 2).t(), strides=False)
    # An axis of one element has any stride, and a tensor without elements any strides.
    assert same_values(torch.ones(1, 3), torch.ones(3, 1).t())
    assert same_values(torch.ones(2, 0), torch.ones(0, 2).t())
    assert not same_values((one,), (one, one))
