from __future__ import annotations

import pytest
import torch

from adjoint.lower.definitions.pieces import RULES
from tests.lower.definitions.samples import (
    LAYOUTS,
    QUICK_AND_REST,
    Row,
    Sample,
    check_rows,
    check_samples,
    numbers,
)

aten = torch.ops.aten

ROWS: list[Row] = [
    (aten.cat.default, lambda x: aten.cat.default([x, x + x, x], 1)),
    (aten.cat.default, lambda x: aten.cat.default([x, x.new_zeros([0])], -1)),
    (aten.cat.default, lambda x: aten.cat.default([x, x.to(torch.float64)], 0)),
    (aten.constant_pad_nd.default, lambda x: aten.constant_pad_nd(x, [1, 2, 0, 1], 1)),
    (aten.constant_pad_nd.default, lambda x: aten.constant_pad_nd(x, [0, 0, 0, 0, 2, 0])),
    (aten.repeat.default, lambda x: aten.repeat(x, [2, 1, 3])),
    (aten.repeat.default, lambda x: aten.repeat(x, [2, 1, 2, 1])),
    *[(aten.tril.default, lambda x, d=d: aten.tril(x, d)) for d in (-1, 0, 2)],
    *[(aten.triu.default, lambda x, d=d: aten.triu(x, d)) for d in (-1, 0, 2)],
]

SAMPLES: list[Sample] = [
    (
        aten.select_backward.default,
        lambda g: aten.select_backward(g, [3, 4, 5], 1, -2),
        lambda d: [numbers(3, 5, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [6, 3], 0, 1, 5, 1),
        lambda d: [numbers(4, 3, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [6, 3], 0, -4, 9223372036854775807, 1),
        lambda d: [numbers(4, 3, dtype=d)],
    ),
    (
        aten.slice_backward.default,
        lambda g: aten.slice_backward(g, [7, 3], 0, 0, 7, 2) * 2,
        lambda d: [numbers(4, 3, dtype=d)],
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtypes", QUICK_AND_REST, ids=["quick", "rest"])
def test_of_one_tensor(layout: str, dtypes: list[torch.dtype]) -> None:
    check_rows([call for _, call in ROWS], layout, dtypes)


@pytest.mark.parametrize("place", range(len(SAMPLES)))
def test_cut(place: int) -> None:
    check_samples(SAMPLES[place])


def test_each_rule_has_a_sample() -> None:
    assert {row[0] for row in [*ROWS, *SAMPLES]} == set(RULES)
