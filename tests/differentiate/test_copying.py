from __future__ import annotations

from typing import Any

import torch

import adjoint
from adjoint.differentiate.copying import Copying, inline
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import inputs_of
from tests.parity import leaf, plain

aten = torch.ops.aten


def captured(dynamic: bool = False) -> torch.fx.GraphModule:
    made = adjoint.capture(lambda x, y: x.sin() * y, leaf(3), leaf(3), dynamic=dynamic)
    return made.graph_module


def test_inlined_nodes_take_the_place_of_the_body() -> None:
    body = captured()
    seen: list[Any] = []

    def copy(owner: Any, node: Any, copies: dict[Any, Any]) -> Any:
        seen.append(node.target)
        return [copies[each] for each in node.all_input_nodes]

    entering = dict(zip(inputs_of(body.graph), ["x", "y"], strict=True))
    assert inline(body, entering, copy) == ([["x"], "y"],)
    assert seen == [aten.sin.default, aten.mul.Tensor]


def test_what_is_known_already_is_not_copied() -> None:
    body = captured()
    (sine,) = body.graph.find_nodes(op="call_function", target=aten.sin.default)
    copying = Copying(body)
    copies = {node: copying.input(node) for node in inputs_of(body.graph)}
    copies[sine] = copies[inputs_of(body.graph)[0]]
    made = copying.finish(inline(body, copies, copying.copy))
    x, y = plain(3), plain(3)
    torch.testing.assert_close(evaluate(made, [x, y])[0], x * y)


def test_a_copy_knows_the_sizes_of_its_values() -> None:
    body = captured(dynamic=True)
    copying = Copying(body)
    (product,) = inline(body, {}, copying.copy)
    shape = list(product.meta["val"].shape)
    zeros = copying.emitter.call(aten.zeros.default, (shape,))
    made = copying.finish([product, zeros])
    assert evaluate(made, [plain(5), plain(5)])[1].shape == (5,)
