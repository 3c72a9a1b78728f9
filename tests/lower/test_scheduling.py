from __future__ import annotations

import torch

from adjoint.loops.plan import SlotKind
from adjoint.loops.show import show_plan as shown
from tests.lowering import check, graph_of, launches, lower

X = torch.arange(12.0).reshape(3, 4)


def test_dead_code_is_not_computed() -> None:
    plan = lower(graph_of(lambda x: [x + 1, (x * 3).exp()][0], [X]))
    assert len(launches(plan)) == 1
    assert "exp" not in shown(plan)


def test_values_inside_a_kernel_are_not_stored() -> None:
    plan = lower(graph_of(lambda x: ((x + 1) * 2).exp(), [X]))
    assert [slot.kind for slot in plan.slots] == [SlotKind.INPUT, SlotKind.OUTPUT]


def test_a_tensor_that_only_gives_its_sizes_is_not_computed() -> None:
    plan = check(lambda x: torch.ones_like(x.sum()) * x, X).plan
    assert "sum" not in shown(plan)
