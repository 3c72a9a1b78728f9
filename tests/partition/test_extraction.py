from __future__ import annotations

import pytest
import torch
from torch import fx

from adjoint.graph.evaluation import evaluate
from adjoint.partition.extraction import NotSaved, descendants, extract, used_values

aten = torch.ops.aten


def chain() -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """Of x and t: a = sin(x), b = cos(x), c = a * t, d = c * b."""
    graph = fx.Graph()
    x, t = graph.placeholder("x"), graph.placeholder("t")
    a = graph.call_function(aten.sin.default, (x,))
    b = graph.call_function(aten.cos.default, (x,))
    c = graph.call_function(aten.mul.Tensor, (a, t))
    d = graph.call_function(aten.mul.Tensor, (c, b))
    graph.output((c, d))
    module = fx.GraphModule(torch.nn.Module(), graph)
    return module, {"x": x, "t": t, "a": a, "b": b, "c": c, "d": d}


def test_descendants_are_all_nodes_that_depend_on_a_root() -> None:
    module, nodes = chain()
    assert descendants(module.graph, [nodes["t"]]) == {nodes[name] for name in "tcd"}


def test_extract_computes_outputs_from_the_given_inputs() -> None:
    module, nodes = chain()
    made, copies = extract(module, [nodes["a"], nodes["t"]], [nodes["c"], None])
    assert set(copies) == {nodes[name] for name in "atc"}
    a, t = torch.rand(3), torch.rand(3)
    product, nothing = evaluate(made, [a, t])
    assert torch.equal(product, a * t)
    assert nothing is None


def test_a_recomputed_node_is_placed_right_before_its_first_reader() -> None:
    module, nodes = chain()
    late = descendants(module.graph, [nodes["t"]])
    made, copies = extract(module, [nodes["x"], nodes["t"]], [nodes["d"]], late=late)
    order = [node for node in made.graph.nodes if node.op == "call_function"]
    assert order == [copies[nodes[name]] for name in "acbd"]


def test_used_values_are_the_available_ones_that_outputs_need() -> None:
    module, nodes = chain()
    available = {nodes["a"], nodes["x"]}
    assert used_values(module, available, [nodes["t"]], [nodes["d"]], set()) == [
        nodes["x"],
        nodes["a"],
    ]
    assert used_values(module, available, [nodes["t"]], [nodes["c"]], set()) == [nodes["a"]]
    with pytest.raises(NotSaved, match="x is needed by a backward graph, but not saved"):
        used_values(module, {nodes["a"]}, [nodes["t"]], [nodes["d"]], set())
