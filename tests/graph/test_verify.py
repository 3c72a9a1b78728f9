from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from adjoint.errors import SourceLine
from adjoint.graph.descriptors import Argument, Gradient, Result, SymbolicSize
from adjoint.graph.metadata import (
    Mode,
    output_node,
    set_descriptor,
    set_mode,
    set_output_descriptors,
    set_source,
    set_value,
    value_of,
)
from adjoint.graph.operations import on_copies
from adjoint.graph.verify import GraphError, verify

aten = torch.ops.aten
X = Argument(0, "args[0]")
Y = Argument(1, "args[1]")
R = Result(0, "result")
LINE = SourceLine("model.py", 12, "forward", "return x + y")


def legal() -> GraphModule:
    """result = x + y"""
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    set_descriptor(x, X)
    set_descriptor(y, Y)
    total = call(graph, aten.add.Tensor, x, y)
    graph.output((total,))
    set_output_descriptors(graph, (R,))
    return GraphModule(torch.nn.Module(), graph)


def call(graph: Graph, target: Any, *args: Any, value: Any = None) -> Node:
    node = graph.call_function(target, args)
    set_value(node, torch.empty(2) if value is None else value)
    set_mode(node, Mode())
    set_source(node, LINE)
    return node


def node_named(module: GraphModule, name: str) -> Node:
    found: list[Node] = [node for node in module.graph.nodes if node.name == name]
    return found[0]


def refusal(module: GraphModule) -> str:
    with pytest.raises(GraphError) as error:
        verify(module)
    return str(error.value)


def test_a_legal_graph_passes() -> None:
    verify(legal())


def test_an_error_names_node_operator_and_line() -> None:
    module = legal()
    node = node_named(module, "add_tensor")
    node.target = aten.add_.Tensor
    assert refusal(module) == (
        "node add_tensor = aten.add_.Tensor(x, y) mutates self; every operator must be functional\n"
        "  at model.py:12 in forward: return x + y"
    )


def test_an_out_variant_is_not_functional() -> None:
    module = legal()
    with module.graph.inserting_before(output_node(module.graph)):
        x, y = node_named(module, "x"), node_named(module, "y")
        total = call(module.graph, aten.add.out, x, y)
        total.kwargs = {"out": y}
    assert "mutates out" in refusal(module)


def test_batch_norm_in_training_is_not_functional() -> None:
    module = legal()
    with module.graph.inserting_before(output_node(module.graph)):
        x, y = node_named(module, "x"), node_named(module, "y")
        call(module.graph, aten.native_batch_norm.default, x, None, None, y, y, True, 0.1, 1e-5)
    assert "mutates running_mean, running_var" in refusal(module)


def test_a_use_before_the_definition() -> None:
    module = legal()
    node_named(module, "x").prepend(node_named(module, "add_tensor"))
    assert "node add_tensor = aten.add.Tensor(x, y) uses x before it is defined" in refusal(module)


def test_a_value_of_another_graph() -> None:
    module, other = legal(), legal()
    node_named(module, "add_tensor").args = (node_named(other, "x"), node_named(module, "y"))
    assert "uses x, which belongs to another graph" in refusal(module)


def test_what_torch_fx_finds_malformed() -> None:
    module = legal()
    with module.graph.inserting_before(output_node(module.graph)):
        module.graph.create_node("get_attr", "nowhere")
    assert "torch.fx finds the graph malformed: " in (said := refusal(module))
    assert "nonexistent attribute nowhere" in said


def test_a_graph_returns_once() -> None:
    module = legal()
    module.graph.erase_node(output_node(module.graph))
    assert "0 output nodes" in refusal(module)


def test_an_input_without_a_descriptor() -> None:
    module = legal()
    del node_named(module, "y").meta["descriptor"]
    assert refusal(module) == "node y is an input without a descriptor"


def test_an_input_described_as_an_output() -> None:
    module = legal()
    set_descriptor(node_named(module, "y"), R)  # type: ignore[arg-type]
    assert "describes no input" in refusal(module)


def test_an_output_described_as_an_input() -> None:
    module = legal()
    set_output_descriptors(module.graph, (X,))  # type: ignore[arg-type]
    assert "describes no output" in refusal(module)


def test_outputs_without_descriptors() -> None:
    module = legal()
    del output_node(module.graph).meta["descriptors"]
    assert "node output returns 1 values without descriptors" in refusal(module)


def test_as_many_descriptors_as_outputs() -> None:
    module = legal()
    set_output_descriptors(module.graph, (R, Gradient(X)))
    assert "node output returns 1 values with 2 descriptors" in refusal(module)


def test_two_inputs_of_one_meaning() -> None:
    module = legal()
    set_descriptor(node_named(module, "y"), X)
    assert refusal(module) == "two inputs have the descriptor 'args[0]'"


def test_two_outputs_of_one_meaning() -> None:
    module = legal()
    total = node_named(module, "add_tensor")
    output_node(module.graph).args = ((total, None),)
    set_output_descriptors(module.graph, (Gradient(X), Gradient(X)))
    assert refusal(module) == "two outputs have the descriptor 'gradient of args[0]'"
    set_output_descriptors(module.graph, (Gradient(X), Gradient(X, order=2)))
    verify(module)


def test_a_call_without_a_value() -> None:
    module = legal()
    del node_named(module, "add_tensor").meta["val"]
    assert "node add_tensor = aten.add.Tensor(x, y) carries no fake value" in refusal(module)


def test_a_call_without_a_mode() -> None:
    module = legal()
    del node_named(module, "add_tensor").meta["mode"]
    assert "does not say which autograd mode" in refusal(module)


@pytest.mark.parametrize(
    ("target", "name"),
    [(torch.add, "torch.add"), (operator.add, "operator.add"), (aten.add, "aten.add")],
)
def test_tensors_are_made_by_operators(target: object, name: str) -> None:
    module = legal()
    node_named(module, "add_tensor").target = target  # type: ignore[assignment]
    assert f"calls {name}" in refusal(module)
    assert "not an operator of torch.ops" in refusal(module)


def test_numbers_and_parts_of_tuples_are_made_by_functions() -> None:
    module = legal()
    x = node_named(module, "x")
    set_descriptor(node_named(module, "y"), SymbolicSize("s0"))
    with module.graph.inserting_before(output_node(module.graph)):
        call(module.graph, operator.mul, node_named(module, "y"), 2, value=6)
        parts = call(module.graph, aten.topk.default, x, 1, value=(torch.empty(1), torch.empty(1)))
        call(module.graph, operator.getitem, parts, 0)
    verify(module)


def test_an_operation_of_our_own_is_an_operator() -> None:
    module = legal()
    x = node_named(module, "x")
    with module.graph.inserting_before(output_node(module.graph)):
        call(module.graph, on_copies, aten.neg_.default, ("self",), (x,), {})
    verify(module)


def test_a_method_or_module_is_no_operator() -> None:
    module = legal()
    with module.graph.inserting_before(output_node(module.graph)):
        module.graph.call_method("neg", (node_named(module, "x"),))
    assert "is a call_method; only operators are legal, as call_function" in refusal(module)


def test_a_fake_tensor_belongs_to_one_node() -> None:
    module = legal()
    set_value(node_named(module, "y"), value_of(node_named(module, "add_tensor")))
    assert "carries the fake tensor of y" in refusal(module)


def with_branch(branch: GraphModule) -> GraphModule:
    """result = cond(x, branch, branch, (y,)), which needs no descriptors inside."""
    root = torch.nn.Module()
    root.branch = branch
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    set_descriptor(x, X)
    set_descriptor(y, Y)
    body = graph.get_attr("branch")
    graph.output((call(graph, torch.ops.higher_order.cond, x, body, body, (y,)),))
    set_output_descriptors(graph, (R,))
    return GraphModule(root, graph)


def branch(target: object) -> GraphModule:
    graph = Graph()
    graph.output((call(graph, target, graph.placeholder("a")),))
    return GraphModule(torch.nn.Module(), graph)


def test_a_legal_subgraph_passes() -> None:
    verify(with_branch(branch(aten.neg.default)))


def test_a_subgraph_is_verified_too() -> None:
    message = refusal(with_branch(branch(aten.neg_.default)))
    assert message.startswith(
        "in subgraph branch: node neg__default = aten.neg_.default(a) mutates"
    )


def test_a_subgraph_of_a_subgraph_is_verified_too() -> None:
    outer = with_branch(branch(aten.neg_.default))
    assert "in subgraph branch: in subgraph branch: node neg_" in refusal(with_branch(outer))
