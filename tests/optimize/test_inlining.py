from __future__ import annotations

import operator

import torch
from torch import Tensor, fx
from torch._higher_order_ops import scan

from adjoint.graph.copying import copied
from adjoint.graph.metadata import arguments_of
from adjoint.graph.subgraphs import body_of
from adjoint.graph.verify import verify
from adjoint.optimize.inlining import inlined, put_result
from tests.rewriting import assert_same, graph_of, targets

X, H = torch.randn(1, 2, 3), torch.randn(2, 3)


def passed_on(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A loop of one step: what it returns is an operand in the first result."""
    last, each = scan(lambda c, s: (c.clone(), c * s.sin()), h, x)
    return last, each


def test_a_body_is_computed_before_a_node_and_its_results_replace_items() -> None:
    module = graph_of(passed_on, X, H)
    made = copied(module)
    (loop,) = made.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan)
    body, (init,), (rows,), others = arguments_of(loop)
    with made.graph.inserting_before(loop):
        row = made.graph.call_function(torch.ops.aten.select.int, (rows, 0, 0))
        row.meta = {**rows.meta, "val": rows.meta["val"][0]}
    seen: list[tuple[fx.Node, fx.Node]] = []
    operands = [init, row, *others]
    last, each = inlined(made, loop, body_of(made, body), operands, lambda *pair: seen.append(pair))
    assert [copy.target for _, copy in seen] == [node.target for node, _ in seen]
    assert seen[-1][1] < loop
    first = next(item for item in loop.users if item.args[1] == 0)
    put_result(first, init)
    (output,) = made.graph.find_nodes(op="output")
    returned = output.all_input_nodes[0]
    assert returned.target is torch.ops.aten.clone.default, "an operand is not returned itself"
    assert last is not each
    made.graph.eliminate_dead_code()
    assert operator.getitem in targets(made)


def test_a_result_of_the_body_is_returned_as_it_is() -> None:
    module = graph_of(lambda x: torch.sin(x) * 2, H)
    (product,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    made = copied(module)
    (old,) = made.graph.find_nodes(op="call_function", target=product.target)
    with made.graph.inserting_before(old):
        new = made.graph.call_function(torch.ops.aten.mul.Tensor, old.args)
    new.meta = {key: each for key, each in old.meta.items() if key != "origin"}
    new.meta["val"] = old.meta["val"].clone()
    put_result(old, new)
    assert targets(made).count(torch.ops.aten.clone.default) == 0
    verify(made)
    assert_same(module, made, H)
