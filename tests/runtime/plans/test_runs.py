from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adjoint.loops.plan import LibraryCall, Plan, arguments_of
from adjoint.runtime.plans.runs import is_fixed_view, last_uses, runs_of
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
