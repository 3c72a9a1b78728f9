from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.lower.definitions.creation import RULES
from tests.lower.definitions.samples import LAYOUTS, QUICK_AND_REST, Row, check_rows
from tests.lowering import calls, check, launches

aten = torch.ops.aten

ROWS: list[Row] = [
    (aten.full_like.default, lambda x: aten.full_like(x, 2) + x),
    (aten.new_full.default, lambda x: aten.new_full(x, [5], 2) + x.sum()),
    (aten.new_ones.default, lambda x: aten.new_ones(x, [2, 2])),
    (aten.new_zeros.default, lambda x: aten.new_zeros(x, [3, 1])),
    (aten.ones_like.default, lambda x: aten.ones_like(x) + x),
    (aten.zeros_like.default, lambda x: aten.zeros_like(x) + x),
]

NEW: list[tuple[Any, Callable[[], Any]]] = [
    (aten.arange.default, lambda: aten.arange(5)),
    (aten.arange.start, lambda: aten.arange.start(2, 7)),
    (aten.arange.start_step, lambda: aten.arange.start_step(7, -3, -2)),
    (aten.arange.start_step, lambda: aten.arange.start_step(0, 1, 0.25)),
    (aten.full.default, lambda: aten.full([2, 3], 1.5)),
    (aten.full.default, lambda: aten.full([2], 0.1, dtype=torch.float16)),
    (aten.ones.default, lambda: aten.ones([2], dtype=torch.bool)),
    (aten.scalar_tensor.default, lambda: aten.scalar_tensor(2.5, dtype=torch.float64)),
    (aten.zeros.default, lambda: aten.zeros([2, 2], dtype=torch.int32)),
]


@pytest.mark.parametrize("place", range(len(NEW)))
def test_new_tensors(place: int) -> None:
    _, call = NEW[place]
    x = torch.tensor(2.0)
    check(lambda x: [call(), call() * x, call().to(torch.float64) + x, (call() + call()).sum()], x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtypes", QUICK_AND_REST, ids=["quick", "rest"])
def test_of_one_tensor(layout: str, dtypes: list[torch.dtype]) -> None:
    check_rows([call for _, call in ROWS], layout, dtypes)


def test_what_is_made_of_nothing_is_not_stored() -> None:
    x = torch.ones(3, 4)
    plan = check(lambda x: x + torch.full((4,), 2.0) + torch.arange(4), x).plan
    (launch,) = launches(plan)
    assert len(launch.operands) == 2
    assert not calls(plan)


def test_each_rule_has_a_sample() -> None:
    assert {row[0] for row in [*ROWS, *NEW]} == set(RULES)
