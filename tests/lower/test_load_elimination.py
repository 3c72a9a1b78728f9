from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

from adjoint.loops.plan import Plan
from tests.lowering import GRID, check, graph_of, launches, lower

# Positive, so that rounding is not all that is left of a sum.
X, Y = (torch.rand(300, 64, dtype=torch.float64) for _ in range(2))
W = torch.rand(64, 64, dtype=torch.float64)


def plan_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Plan:
    return lower(graph_of(function, inputs), GRID)


def tensors_read_and_written(plan: Plan) -> list[tuple[int, int]]:
    """By each kernel."""
    written = [sum(each.written for each in launch.kernel.buffers) for launch in launches(plan)]
    return [(len(e.kernel.buffers) - n, n) for e, n in zip(launches(plan), written, strict=True)]


def gated(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """The gate is made of two tensors; both are read again where it is, after a product."""
    gate = x * torch.sigmoid(y)
    total = torch.mm(gate.sum(0, keepdim=True), w)
    return [gate * total + x * y]


def test_a_value_that_its_reader_can_make_of_what_it_reads_is_not_stored() -> None:
    plan = plan_of(gated, X, Y, W)
    assert all(written == 1 for _, written in tensors_read_and_written(plan))
    check(gated, X, Y, W)


def test_what_others_need_is_stored_but_not_read() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        gate = x * torch.sigmoid(y)
        total = torch.mm(gate.sum(0, keepdim=True), w)
        return [gate * total + x * y, gate]

    plan = plan_of(function, X, Y, W)
    assert tensors_read_and_written(plan)[-1] == (3, 1)
    check(function, X, Y, W)


def test_elements_at_other_places_are_not_at_hand() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        gate = x * torch.sigmoid(y)
        total = torch.mm(gate.sum(0, keepdim=True), w)
        return [gate * total, gate.flip(0) * total + x * y]

    check(function, X, Y, W)


def test_a_chain_is_taken_from_its_end() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        first = silu(x)
        second = first * y
        total = torch.mm((first + second).sum(0, keepdim=True), w)
        return [second * total + first + x * y]

    plan = plan_of(function, X, Y, W)
    assert all(written == 1 for _, written in tensors_read_and_written(plan))
    check(function, X, Y, W)


def test_what_takes_long_is_stored() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.sin() * x.exp()
        return x

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        made = long(x) * y
        total = torch.mm(made.sum(0, keepdim=True), w)
        return [made * total + x * y]

    assert (2, 2) in tensors_read_and_written(plan_of(function, X, Y, W))
    check(function, X, Y, W)
