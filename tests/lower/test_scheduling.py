from __future__ import annotations

import torch

from adjoint.loops.plan import SlotKind
from adjoint.loops.show import show_plan as shown
from adjoint.lower.scheduling import is_plain
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


def test_which_tensors_kernels_can_read() -> None:
    assert is_plain(torch.ones(3))
    assert not is_plain(torch.ones(3, dtype=torch.complex64))
    assert not is_plain(torch.ones(3).to_sparse())
    assert not is_plain(torch.ones(3, device="meta"))
    assert not is_plain(3)


def test_common_subexpressions_are_computed_once() -> None:
    aten = torch.ops.aten

    def function(g: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [aten.sigmoid_backward(g, y) @ y, (g * (1 - y) * y).sin() @ y]

    x, y = torch.rand(2, 6, 6, dtype=torch.float64)
    check(function, x, y)
    one, other = (
        (lambda x: [(x + 1) @ x, (x + 1) @ x.t()]),
        (lambda x: [x + 1, (x + 1).split(2)[0]]),
    )
    assert shown(lower(graph_of(one, [x]))).count(" + 1.0") == 1
    first, second = check(other, x)([x])
    assert first.data_ptr() != second.data_ptr(), "two that are returned are two"
