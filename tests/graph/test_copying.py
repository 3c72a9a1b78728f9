from __future__ import annotations

import torch
from torch import Tensor

import adjoint
from adjoint.graph.copying import GraphCopy, copied
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import Mode, entry_mode, outputs_of, set_entry_mode
from adjoint.graph.show import show
from tests.parity import plain

aten = torch.ops.aten


def graph(dynamic: bool = False) -> torch.fx.GraphModule:
    def function(x: Tensor) -> Tensor:
        return (x.sin() * 2).reshape(x.shape[0] * 2)

    return adjoint.capture(function, plain(3, 2), dynamic=dynamic).graph_module


def test_a_copy_shows_and_computes_the_same() -> None:
    for original in (graph(), graph(dynamic=True)):
        set_entry_mode(original, Mode(grad_enabled=False))
        copy = copied(original)
        assert show(copy) == show(original)
        assert entry_mode(copy) == Mode(grad_enabled=False)
        x = plain(3, 2)
        assert torch.equal(evaluate(copy, [x])[0], evaluate(original, [x])[0])


def test_a_copy_is_changed_alone() -> None:
    original = graph()
    before = show(original)
    copy = copied(original)
    for node in copy.graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = aten.cos.default
        node.meta["source"] = None
    assert show(original) == before
    assert show(copy) != before


def test_arguments_may_be_others_than_their_copies() -> None:
    original = graph()
    copy = GraphCopy(original)
    (x,) = original.graph.find_nodes(op="placeholder")
    (sin,) = original.graph.find_nodes(op="call_function", target=aten.sin.default)
    (product,) = original.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    entering = copy.add_input(sin)
    copy.add_input(x)
    copy.add(product, {sin: copy.copies[x]})
    copy.returns([product, None])
    made = copy.finish()
    assert [node.name for node in made.graph.find_nodes(op="placeholder")] == [sin.name, x.name]
    assert not entering.users
    assert outputs_of(made.graph) == (copy.copies[product], None)
    x_value = plain(3, 2)
    assert torch.equal(evaluate(made, [plain(3, 2), x_value])[0], x_value * 2)
