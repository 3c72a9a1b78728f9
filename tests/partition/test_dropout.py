from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import adjoint
from adjoint.graph.copying import copied
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import region_of
from adjoint.graph.verify import verify
from adjoint.partition.dropout import open_dropout
from tests.parity import leaf
from tests.partition.test_split import targets

aten = torch.ops.aten


def dropped(x: Tensor, p: float = 0.25) -> tuple[Tensor, Tensor]:
    result, mask = aten.native_dropout.default(x, p, True)
    return result.sin(), mask


def only_the_result(x: Tensor) -> Tensor:
    return aten.native_dropout.default(x, 0.25, True)[0].sin()  # type: ignore[no-any-return]


def everything(x: Tensor) -> tuple[Tensor, Tensor]:
    return dropped(x, 1.0)


def not_training(x: Tensor) -> Tensor:
    return aten.native_dropout.default(x, 0.25, False)[0].sin()  # type: ignore[no-any-return]


def noise(x: Tensor) -> Tensor:
    return x * torch.empty_like(x).bernoulli_(0.25)


def probabilities(x: Tensor) -> Tensor:
    return x * torch.bernoulli(x.detach().sigmoid())


def opened(function: Any) -> torch.fx.GraphModule:
    def program(x: Tensor) -> Any:
        return checkpoint(function, x, use_reentrant=False)

    return adjoint.capture(program, leaf(50)).graph_module


@pytest.mark.parametrize(
    "function", [dropped, only_the_result, everything, not_training, noise, probabilities]
)
def test_an_opened_dropout_computes_the_same(function: Any) -> None:
    graph_module, x = opened(function), leaf(50).detach()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(evaluate(graph_module, [x]))
        graph_module = open_dropout(copied(graph_module))
        verify(graph_module)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_the_result_is_a_product_with_the_mask() -> None:
    graph_module = open_dropout(opened(only_the_result))
    assert targets(graph_module).count(aten.mul.Tensor) == 2
    assert all(region_of(n) for n in graph_module.graph.nodes if n.op == "call_function")


def test_a_mask_of_numbers_is_narrowed_and_marked() -> None:
    graph = open_dropout(opened(noise)).graph
    narrow, wide = graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert narrow.meta["val"].dtype is torch.bool
    regions = [region_of(narrow), region_of(wide)]
    assert [each and each.policy for each in regions] == ["MUST_SAVE", ""]


@pytest.mark.parametrize("function", [dropped, noise])
def test_nothing_is_changed_outside_of_checkpoints(function: Any) -> None:
    graph_module = adjoint.capture(function, leaf(5)).graph_module
    before = targets(graph_module)
    assert targets(open_dropout(graph_module)) == before
