from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.evaluation import (
    InputsWithHistory,
    detach_inputs,
    evaluate,
)
from adjoint.graph.metadata import Mode, entry_mode
from tests.control_flow import scan, while_loop

aten = torch.ops.aten


def module_of(op: Any, *others: Any) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    operands = [graph.placeholder("y") if each is ... else each for each in others]
    graph.output((graph.call_function(op, (x, *operands)),))
    return torch.fx.GraphModule({}, graph)


def modes(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        z = y * 3
    return y, z


@pytest.mark.parametrize("grad", [True, False])
def test_the_callers_mode_holds_outside_of_regions(grad: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    captured = adjoint.capture(modes, x)
    assert entry_mode(captured.graph_module) == Mode()
    with torch.set_grad_enabled(grad):
        y, z = evaluate(captured.graph_module, [x])
    assert y.requires_grad is grad
    assert not z.requires_grad


def test_values_are_released_after_their_last_use() -> None:
    alive: list[weakref.ref[Tensor]] = []
    counts: list[int] = []

    def step(x: Tensor) -> Tensor:
        result = x + 1
        gc.collect()
        counts.append(sum(each() is not None for each in alive))
        alive.append(weakref.ref(result))
        return result

    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for _ in range(4):
        value = graph.call_function(step, (value,))
    graph.output((value,))
    evaluate(torch.fx.GraphModule({}, graph), [torch.ones(2)])
    assert max(counts) == 1


def test_an_error_says_where_it_came_from() -> None:
    captured = adjoint.capture(lambda x, i: x[i], torch.ones(3), torch.tensor([0]))
    with pytest.raises(IndexError) as raised:
        evaluate(captured.graph_module, [torch.ones(3), torch.tensor([9])])
    notes = getattr(raised.value, "__notes__", None)
    assert notes is None or "lambda x, i: x[i]" in notes[0]


def test_what_a_branch_or_a_loop_returns_is_new() -> None:
    x, y = torch.ones(3), torch.ones(3)
    for function in (
        lambda x, y: torch.cond(x.sum() > 0, lambda a, b: (a, b), lambda a, b: (b, a), (x, y)),
        lambda x, y: while_loop(lambda a, b: a.sum() < 0, lambda a, b: (b, a), (x, y)),
    ):
        graph = adjoint.capture(function, x, y).graph_module
        first, second = evaluate(graph, [x, y])
        assert torch.equal(first, x)
        assert not {first.data_ptr(), second.data_ptr()} & {x.data_ptr(), y.data_ptr()}


def test_a_loop_of_no_steps_knows_what_it_would_have_given() -> None:
    def function(x: Tensor) -> Any:
        def step(c: Tensor, a: Tensor) -> Any:
            return c + a.sum(), torch.rand(2) * a[:2]

        return scan(step, x.sum(), x)

    graph = adjoint.capture(function, torch.ones(4, 3), dynamic=True).graph_module
    state = torch.get_rng_state()
    carry, steps = evaluate(graph, [torch.ones(0, 3)])
    assert (carry.item(), tuple(steps.shape)) == (0.0, (0, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_only_tracked_inputs_are_forgotten() -> None:
    x = torch.ones(3, requires_grad=True)
    tracked, plain = InputsWithHistory([x, 3, x.detach()]), [x, 3]
    detach_inputs(tracked)
    detach_inputs(plain)
    assert plain[0] is x
    assert tracked[1] == 3
    for each in (tracked[0], tracked[2]):
        assert each is not x
        assert not each.requires_grad
        assert each.data_ptr() == x.data_ptr()
    with torch.no_grad():
        x.add_(1)
    assert tracked[0]._version == x._version
