from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.loops.plan import SlotKind
from adjoint.loops.show import show_plan
from adjoint.lower.definitions import definition_of
from adjoint.lower.inlining import inlined
from adjoint.lower.items import item_of
from tests.lowering import GRID, check, graph_of, launches, lower

X, W = torch.rand(64, 32, dtype=torch.float64), torch.rand(32, 32, dtype=torch.float64)


def chosen(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    items = {}
    for node in graph_of(function, inputs).graph.nodes:
        definition = definition_of(node)
        if definition is not None:
            items[node] = item_of(node, definition)
    left = inlined(items)
    return [str(node.target).split(".")[1] for node in items if node not in left]


def test_what_is_read_for_it_is_no_more_than_it() -> None:
    assert chosen(lambda x, w: [((x + 1).exp() * 2).sum(0)], X, W) == ["add", "exp", "mul"]
    assert chosen(lambda x, y: [(x * y).sum(0)], X, X + 1) == []


def test_a_copy_that_lies_otherwise_is_made() -> None:
    assert chosen(lambda x, w: [(x.t().contiguous() * 2).sum(0)], X, W) == ["mul"]


def test_what_a_call_needs_is_stored() -> None:
    assert chosen(lambda x, w: [(x + 1) @ w], X, W) == []
    assert chosen(lambda x, w: [x + 1], X, W) == []


def test_what_many_elements_read_is_not_computed_for_each() -> None:
    scale = torch.rand(64, dtype=torch.float64)
    assert chosen(lambda x, s: [x * s.sin()[:, None]], X, scale) == []
    assert chosen(lambda x, s: [x * (s + 1)[:, None]], X, scale) == ["add"]


def test_a_table_that_is_looked_up_is_small() -> None:
    table, places = torch.rand(4, 32), torch.zeros(64, dtype=torch.int64)
    assert chosen(lambda t, i: [(t[i] * 2).sum(0)], table, places) == ["index", "mul"]


@pytest.mark.parametrize("order", [0, 1])
def test_between_kernels_only_what_is_needed_is_stored(order: int) -> None:
    """Of `x + b`, its sigmoid and their product, a product of matrices needs the last alone."""

    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        gate = y.sigmoid()
        z = (y * gate) @ w
        return [(z * gate * (1 - gate)).sum(order)]

    check(function, X, W)
    first = launches(lower(graph_of(function, [X, W]), GRID))[0]
    assert sum(buffer.written for buffer in first.kernel.buffers) == 1
    assert "sigmoid" in show_plan(lower(graph_of(function, [X, W]), GRID))


def test_an_index_that_is_checked_is_there() -> None:
    """However it is viewed: its range is checked before anything is read by it."""
    x, y = torch.rand(6, 5, dtype=torch.float64), torch.tensor([0, 3, 1, 2, 3, 0])
    check(lambda x, y: [x.gather(1, (y + 1).unsqueeze(1)) * 2], x, y)
    check(lambda x, y: [(x[(y + 1).view(2, 3).view(-1)] + 1).sum(0)], x, y)


def test_what_was_merged_reads_nothing_any_more() -> None:
    """`y * z` twice: the second is the first, and the rows `y` need not be stored for it."""
    table, places, z = torch.rand(4, 32), torch.zeros(64, dtype=torch.int64), torch.rand(64, 32)
    w = torch.rand(32, 32)

    def function(
        t: torch.Tensor, i: torch.Tensor, z: torch.Tensor, w: torch.Tensor
    ) -> list[torch.Tensor]:
        y = t[i]
        a = (y * z) @ w
        return [(y * a + y * z).exp().sum(0)]

    plan = lower(graph_of(function, [table, places, z, w]), GRID)
    large = [s for s in plan.slots if s.shape == (64, 32) and s.kind is SlotKind.TEMPORARY]
    # What the product of matrices takes and gives.
    assert len(large) == 2
    check(function, table, places, z, w)
