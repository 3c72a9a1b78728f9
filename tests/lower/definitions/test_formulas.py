from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.lower.definitions.formulas import RULES
from tests.lower.definitions.samples import Sample, check_samples, numbers
from tests.lowering import check

aten = torch.ops.aten

SAMPLES: list[Sample] = [
    *[
        (
            aten.mse_loss_backward.default,
            lambda g, x, y, r=r: aten.mse_loss_backward(g, x, y, r),
            lambda d, r=r: [
                numbers(*([] if r else [4, 2]), dtype=d),
                numbers(4, 2, dtype=d),
                numbers(4, 2, dtype=d, seed=3),
            ],
        )
        for r in (0, 1, 2)
    ],
]


@pytest.mark.parametrize("place", range(len(SAMPLES)))
def test_of_a_loss(place: int) -> None:
    check_samples(SAMPLES[place])


@pytest.mark.parametrize("call", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integers_divided_by_zero_raise(call: Any) -> None:
    x, good, bad = torch.arange(3), torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])
    program = check(lambda x, y: call(x, y) + x, x, good)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        program([x, bad])


def test_each_rule_has_a_sample() -> None:
    assert {row[0] for row in SAMPLES} == set(RULES)
