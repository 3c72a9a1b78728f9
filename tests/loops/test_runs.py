from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from adjoint.loops.plan import LibraryCall, Plan, SlotKind, arguments_of
from adjoint.loops.runs import (
    MIN_FREED_BYTES,
    freeing_early,
    is_fixed_view,
    last_uses,
    runs_of,
    why_not_captured,
)
from tests.lowering import graph_of, launches, lower

X = torch.rand(6, 5)


def planned(function: Callable[..., Any]) -> Plan:
    return lower(graph_of(function, [X]))


def test_a_call_ends_a_run() -> None:
    plan = planned(lambda x: [(x.sin().sort(1).values * 2).sum(0)])
    runs = runs_of(plan)
    assert len(runs) == 2
    assert [step for run in runs for _, step in run.steps] == launches(plan)


def test_what_a_call_brings_enters_and_what_lives_inside_does_not() -> None:
    plan = planned(lambda x: [(x.exp() @ x.t()).sort(1).values + 1])
    call_slots = {slot for run in runs_of(plan) for slot in run.call_slots}
    assert plan.inputs[0] in call_slots
    inner = {slot.number for slot in plan.slots if slot.kind.value == "temporary"}
    assert inner
    assert not inner & call_slots


def test_a_view_of_what_lives_inside_is_made_once() -> None:
    plan = planned(lambda x: [x.exp().t().sort(1).values])
    views = [step for step in plan.steps if isinstance(step, LibraryCall) and step.is_view]
    fixed = {slot.number for slot in plan.slots if slot.kind.value == "temporary"}
    assert [is_fixed_view(view, fixed) for view in views] == [True]
    assert not is_fixed_view(views[0], set())


def test_a_value_is_used_as_long_as_a_view_of_it() -> None:
    plan = planned(lambda x: [x.sort(1).values.t().cumsum(0), x.sin()])
    (view,) = [step for step in plan.steps if isinstance(step, LibraryCall) and step.is_view]
    (viewed,) = arguments_of(view)
    last, reader = last_uses(plan), plan.steps.index(view) + 1
    assert last[view.result] == last[viewed] == reader


def sums(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Two kernels that have nothing in common, and no library call."""
    return [x.exp().sum(0), y.sin().sum(1)]


def test_a_plan_that_gives_memory_back_pauses_where_a_large_input_was_read_last() -> None:
    side = int((MIN_FREED_BYTES // 4) ** 0.5)
    for length, count in ((side, 2), (side // 2, 1)):
        plan = lower(graph_of(sums, [torch.rand(length, length), torch.rand(length, length + 1)]))
        assert len(launches(plan)) == 2
        assert len(runs_of(plan)) == 1
        assert len(runs_of(replace(plan, gives_back=True))) == count


def test_large_temporaries_are_freed_after_their_last_use() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.linalg.qr(x.exp())[0]]

    plan = lower(graph_of(function, [torch.rand(64, 64)]))
    kinds = [slot.kind for slot in plan.slots]
    assert kinds.count(SlotKind.TEMPORARY) == 1
    early = freeing_early(plan)
    assert SlotKind.TEMPORARY not in [slot.kind for slot in early.slots]
    small = lower(graph_of(function, [torch.rand(8, 8)]))
    assert freeing_early(small).slots == small.slots


def test_a_plan_that_gives_memory_back_is_not_captured() -> None:
    plan = planned(lambda x: [x.sin()])
    assert why_not_captured(plan) == ""
    assert "frees memory" in why_not_captured(replace(plan, gives_back=True))
