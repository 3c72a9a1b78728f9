from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import outputs_of, tensor_of
from adjoint.graph.origins import origins_of
from adjoint.graph.verify import verify
from adjoint.optimize.cse import merge_common_subexpressions
from adjoint.torch_private import symbols
from tests.parity import leaf

aten = torch.ops.aten


def merged(function: Callable[..., Any], *args: Any) -> tuple[fx.GraphModule, list[Any]]:
    module = adjoint.capture(function, *args).graph_module
    merge_common_subexpressions(module)
    verify(module)
    return module, [node.target for node in module.graph.nodes]


def test_nodes_of_different_checkpoints_are_not_merged() -> None:
    def function(x: Tensor) -> Tensor:
        one = checkpoint(torch.sin, x, use_reentrant=False)
        other = checkpoint(lambda x: x.sin() + x.sin(), x, use_reentrant=False)
        return one + other + x.sin()  # type: ignore[no-any-return]

    _, targets = merged(function, leaf(3))
    assert targets.count(aten.sin.default) == 3


def test_equal_results_of_data_dependent_size_have_one_symbol_for_it() -> None:
    module, targets = merged(
        lambda x: (x.bincount() * 2, x.bincount() * 3), torch.tensor([1, 2, 1])
    )
    assert targets.count(aten.bincount.default) == 1
    one, other = outputs_of(module.graph)
    assert symbols.same_number(tensor_of(one).shape[0], tensor_of(other).shape[0])


def test_the_same_op_of_the_same_values_is_computed_once() -> None:
    module, targets = merged(lambda x: x.sin() * 2 + x.sin() * 2, leaf(3))
    assert targets.count(aten.sin.default) == 1
    assert targets.count(aten.mul.Tensor) == 1
    x = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(evaluate(module, [x])[0], 4 * x.sin())


def mixed_modes(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return x.sin() + y


@pytest.mark.parametrize(
    ("function", "op", "count"),
    [
        (lambda x: torch.rand_like(x) + torch.rand_like(x), aten.rand_like.default, 2),
        (lambda x: x * 1 + x * 1.0, aten.mul.Tensor, 2),
        (lambda x: x * 0.0 + x * -0.0, aten.mul.Tensor, 2),
        (lambda x: x * float("nan") + x * float("nan"), aten.mul.Tensor, 1),
        (lambda x: x.sum(0) + x.sum(0, keepdim=True), aten.sum.dim_IntList, 2),
        (lambda x: x.to(torch.float32) + x.to(torch.float32), aten._to_copy.default, 1),
        (lambda x: x.to(torch.float32) + x.to(torch.float16), aten._to_copy.default, 2),
        (mixed_modes, aten.sin.default, 2),
    ],
)
def test_what_is_the_same(function: Callable[[Tensor], Any], op: Any, count: int) -> None:
    _, targets = merged(function, leaf(3))
    assert targets.count(op) == count


def test_what_is_left_stands_for_both() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    one, other = (graph.call_function(torch.ops.aten.sin.default, (x,)) for _ in range(2))
    graph.output((one, other))
    both = {*origins_of(one), *origins_of(other)}
    merge_common_subexpressions(fx.GraphModule(torch.nn.Module(), graph))
    (left,) = (node for node in graph.nodes if node.op == "call_function")
    assert left is one
    assert set(origins_of(left)) == both


def test_parts_of_several_results() -> None:
    _, targets = merged(lambda x: x.sort()[0] + x.sort()[0], leaf(3))
    assert targets.count(aten.sort.default) == 1
