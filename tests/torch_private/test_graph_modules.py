from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx

from adjoint.torch_private.graph_modules import module_of, set_arguments


def doubled() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), 2)))
    return module_of(torch.nn.Module(), graph)


def test_code_is_written_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[fx.Graph] = []
    write = fx.Graph.python_code

    def noted(self: fx.Graph, *args: Any, **kwargs: Any) -> Any:
        written.append(self)
        return write(self, *args, **kwargs)

    monkeypatch.setattr(fx.Graph, "python_code", noted)
    module = doubled()
    module.recompile()
    assert not written
    assert module(3) == 6
    assert module(4) == 8
    assert written == [module.graph]


def test_a_graph_may_change_until_it_is_called() -> None:
    module = doubled()
    (node,) = module.graph.find_nodes(op="call_function", target=torch.mul)
    node.args = (node.args[0], 5)
    assert module(3) == 15
    node.args = (node.args[0], 7)
    module.recompile()
    assert module(3) == 21
    assert "7" in module.code


def test_it_is_a_graph_module_like_any_other() -> None:
    assert isinstance(doubled(), fx.GraphModule)
    assert copy.deepcopy(doubled())(3) == 6
    assert "torch.mul(x, 2)" in doubled().code
    assert fx.GraphModule(doubled(), doubled().graph)(3) == 6


def test_arguments_are_set_as_torch_sets_them() -> None:
    module = doubled()
    (x,) = module.graph.find_nodes(op="placeholder")
    (node,) = module.graph.find_nodes(op="call_function", target=torch.mul)
    set_arguments(node, (3,), {"other": x})
    assert (node.args, node.kwargs) == ((3,), {"other": x})
    assert list(x.users) == [node]
    set_arguments(node, (3, 5), {})
    assert not x.users
    assert not node.all_input_nodes
    assert module.graph.find_nodes(op="call_function", target=torch.mul) == [node]
    module.graph.lint()
    assert module(4) == 15
