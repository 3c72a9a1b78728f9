from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import map as map_operator
from torch._higher_order_ops import scan

from adjoint.graph.verify import verify
from adjoint.observing import watching
from adjoint.optimize.loops import MAX_UNROLLED_TRIPS, unroll_loops
from tests.control_flow import scan as scan_or_loop
from tests.parity import Route, check
from tests.rewriting import assert_same, graph_of, targets

map_slices: Any = map_operator
SCAN = torch.ops.higher_order.scan
MAP = torch.ops.higher_order.map_impl


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def recurrent(x: Tensor, h: Tensor) -> Any:
    return scan(lambda c, x: ((n := (c @ c.mT @ x + x).tanh()), n * 2), h, x)


def two_carried(x: Tensor, h: Tensor) -> Any:
    """One is passed on as it is, and one is exchanged with a slice."""
    step = lambda c, x: ((c[0], x.sin()), (c[1] + x, c[0] * x))  # noqa: E731
    return scan(step, (h, h.cos()), x)


def turned(x: Tensor, h: Tensor) -> Any:
    """What is carried into the first step is laid out in memory otherwise than later."""
    carried, ys = scan(lambda c, x: ((c * x).clone(), c + x), h.t().contiguous().t(), x)
    return carried.sin(), ys


def mapped(x: Tensor, h: Tensor) -> Any:
    return map_slices(lambda row: row.sin() * 2, x)


LOOPS = [recurrent, two_carried, turned, mapped]


@pytest.mark.parametrize("function", LOOPS)
def test_steps_are_written_out(function: Callable[..., Any]) -> None:
    inputs = [drawn(4, 2, 3), drawn(2, 3)]
    module = graph_of(function, *inputs)
    assert {SCAN, MAP} & set(targets(module))
    before = str(module.graph)
    made = unroll_loops(module)
    verify(made)
    assert not {SCAN, MAP} & set(targets(made))
    assert str(module.graph) == before
    assert_same(module, made, *inputs)


def nested(x: Tensor, h: Tensor) -> Any:
    return scan(lambda c, x: (c + map_slices(torch.sin, x), c * x), h, x)


@pytest.mark.parametrize(
    ("why", "function", "steps", "dynamic"),
    [
        ("many steps", recurrent, MAX_UNROLLED_TRIPS + 1, False),
        ("a number that is not constant", recurrent, 4, True),
        ("a loop inside", nested, 4, False),
        ("no loop", lambda x, h: (x + h).sin(), 4, False),
    ],
)
def test_loops_that_stay(why: str, function: Any, steps: int, dynamic: bool) -> None:
    module = graph_of(function, drawn(steps, 2, 3), drawn(2, 3), dynamic=dynamic)
    assert unroll_loops(module) is module, why


def test_many_nodes_stay_a_loop() -> None:
    def step(c: Tensor, x: Tensor) -> Any:
        for _ in range(20):
            c = (c * x).sin()
        return c, c + x

    module = graph_of(lambda x, h: scan(step, h, x), drawn(60, 2, 3), drawn(2, 3))
    assert unroll_loops(module) is module


@pytest.mark.parametrize("dropout", [False, True])
def test_two_orders_and_draws_are_those_of_eager(dropout: bool) -> None:
    weight = drawn(3, 3)

    def function(x: Tensor, h: Tensor) -> Any:
        def step(c: Tensor, x: Tensor) -> Any:
            c = (c @ weight + x).tanh()
            return (torch.nn.functional.dropout(c, 0.5) if dropout else c), c.sin()

        return scan_or_loop(step, h, x)

    def inputs() -> tuple[Tensor, Tensor]:
        return drawn(5, 2, 3).requires_grad_(), drawn(2, 3).requires_grad_()

    loops: list[bool] = []

    def watch(event: Any) -> None:
        if getattr(event, "stage", None) in ("partition", "unroll-loops"):
            graphs = getattr(event.value, "graph_module", event.value)
            loops.append(SCAN in targets(graphs))

    with watching(watch):
        check(function, inputs, Route.DYNAMO, order=2)
    assert any(loops)
    assert not loops[-1]
