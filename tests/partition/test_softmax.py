from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

import adjoint
from adjoint.graph.origins import origins_of
from adjoint.partition import softmax
from adjoint.partition.softmax import close_softmax, open_softmax
from tests.parity import leaf
from tests.partition.test_split import aten, cross_entropy, recorded, saved_nodes, targets


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    return leaf(16, 8).float(), leaf(8, 32).float(), torch.arange(16)


def test_row_maxima_and_row_sums_are_saved() -> None:
    made = recorded(cross_entropy, *arguments(), wrt=(0, 1))
    shapes = [tuple(node.meta["val"].shape) for node in saved_nodes(made)]
    assert shapes.count((16, 1)) == 2
    again = targets(made.first_backward.graph_module)
    assert aten.amax.default not in again
    assert aten.log.default not in again
    # That of the cotangent alone.
    assert again.count(aten.sum.dim_IntList) <= 1


def test_other_softmaxes_are_not_opened() -> None:
    def function(x: Tensor) -> Tensor:
        return x.log_softmax(-1)

    graph: fx.GraphModule = adjoint.capture(function, torch.rand(3, 4)).graph_module
    before = targets(graph)
    assert targets(open_softmax(graph)) == before
    assert close_softmax(graph) is graph


@pytest.mark.parametrize("target", ["reference", "native"])
def test_all_orders_are_right(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In double precision, where softmax is opened only for this test, errors would show."""
    monkeypatch.setattr(softmax, "is_cheap", lambda node: True)

    def derivatives(function: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        x, weight = leaf(16, 8), leaf(8, 32)
        loss = function(x, weight)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), (x, weight), create_graph=True)
        third = torch.autograd.grad(torch.cat([each.flatten() for each in second]).norm(), x)
        return [loss, first, *second, *third]

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ weight, torch.arange(16))

    compiled = torch.compile(function, backend="adjoint", options={"target": target})
    torch.testing.assert_close(derivatives(compiled), derivatives(function))


def test_a_graph_that_is_differentiated_again_has_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(softmax, "is_cheap", lambda node: True)

    def function(x: Tensor) -> Tensor:
        return x.log_softmax(-1).exp()

    graph: fx.GraphModule = adjoint.capture(function, torch.rand(3, 4)).graph_module
    before = targets(graph)
    (whole,) = graph.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
    origin = origins_of(whole)
    open_softmax(graph)
    assert aten._log_softmax.default not in targets(graph)
    closed = close_softmax(graph)
    assert targets(closed) == before
    (whole,) = closed.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
    assert set(origin) <= set(origins_of(whole))
