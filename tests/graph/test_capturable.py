from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
from torch import fx

from adjoint.graph.capturable import why_not_capturable
from adjoint.graph.operations import provided
from tests.lowering import graph_of

CPU = torch.device("cpu")
aten = torch.ops.aten


def reasons(function: Callable[..., Any], *inputs: Any, device: torch.device = CPU) -> list[str]:
    graph: fx.Graph = graph_of(function, inputs).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [why for why in (why_not_capturable(node, device) for node in calls) if why]


x = torch.rand(4, 4)
places = torch.tensor([0, 2])
mask = torch.tensor([True, False, True, True])
heads = torch.rand(1, 2, 4, 4)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x @ x, (x,)),
        (lambda x: x.split(2)[1] + 1, (x,)),
        (lambda x, i: x[i], (x, places)),
        (lambda x, i: aten.index_put(x, [i], x[i], True), (x, places)),
        (
            lambda x: aten.convolution(x[None], x[:, :, None], None, [1], [0], [1], False, [0], 1),
            (x,),
        ),
        (lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0], (heads,)),
        (lambda x: aten.native_dropout(x, 0.5, True)[0], (x,)),
    ],
)
def test_a_device_can_repeat(function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    assert reasons(function, *inputs) == []


def test_a_device_can_repeat_an_assertion() -> None:
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = mask.all()
    call = graph.call_function(aten._assert_async.msg, (given, "large"))
    assert why_not_capturable(call, CPU) == ""


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (lambda x: aten.nonzero(x > 0), (x,), "aten.nonzero.default waits for values"),
        (lambda x, m: x[m], (x, mask), "aten.index.Tensor counts the elements of a mask"),
        (
            lambda x, m: aten.index_put(x, [m], x[0]),
            (x, mask),
            "aten.index_put.default counts the elements of a mask",
        ),
        (
            lambda x, m: aten.index_put(x, [m], x[0]),
            (x, mask.to(torch.uint8)),
            "aten.index_put.default counts the elements of a mask",
        ),
        (lambda x: provided(x, x.sum(), "no"), (x,), "adjoint.provided.default may do anything"),
        (
            lambda x: x.to_sparse().to_dense(),
            (x,),
            "aten._to_sparse.default has a sparse tensor",
        ),
    ],
)
def test_a_device_cannot_repeat(
    function: Callable[..., Any], inputs: tuple[Any, ...], message: str
) -> None:
    assert message in reasons(function, *inputs)


def test_tensors_elsewhere_are_read_when_it_is_recorded() -> None:
    (why, *_) = reasons(lambda x: x.sin(), x, device=torch.device("cuda", 0))
    assert why == "aten.sin.default has a tensor on cpu"


def test_only_the_default_generator_is_advanced_by_a_replay() -> None:
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = x
    assert why_not_capturable(graph.call_function(aten.bernoulli.p, (given, 0.5)), CPU) == ""
    own = graph.placeholder("generator")
    call = graph.call_function(aten.bernoulli.p, (given, 0.5), {"generator": own})
    assert "from a generator of its own" in why_not_capturable(call, CPU)


def test_a_function_in_python_is_not_looked_into() -> None:
    graph = fx.Graph()
    call = graph.call_function(graph_of, ())
    assert "runs Python" in why_not_capturable(call, CPU)


def test_results_in_host_memory_that_nothing_uses() -> None:
    """As the state of the random generator that fused attention returns."""
    graph = fx.Graph()
    given = graph.placeholder("x")
    call = graph.call_function(aten.var_mean.default, (given,))
    element = graph.call_function(getitem, (call, 0))
    away = torch.empty(3, device="meta")
    for node, value in ((given, away), (call, (away, torch.empty(()))), (element, away)):
        node.meta["val"] = value
    assert why_not_capturable(call, away.device) == ""
    assert why_not_capturable(element, away.device) == ""
    state = graph.call_function(getitem, (call, 1))
    state.meta["val"] = torch.empty(())
    assert why_not_capturable(call, away.device) == f"{aten.var_mean.default} has a tensor on cpu"
