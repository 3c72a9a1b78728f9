from __future__ import annotations

import functools

import pytest
import torch

from adjoint.lower.definitions.reductions import RULES
from tests.lower.definitions.samples import DTYPES, LAYOUTS, QUICK_AND_REST, Row, check_rows
from tests.lowering import check

aten = torch.ops.aten

# Which axes are reduced, and whether they are kept with one element.
AXES: list[tuple[list[int], bool]] = [
    ([0], True),
    ([1], False),
    ([2], True),
    ([2], False),
    ([-1, 0], True),
    ([0, 1, 2], False),
    ([1, 2], False),
]

ROWS: list[Row] = [
    *[
        (op, functools.partial(op, dim=dim, keepdim=keep))
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
        for dim, keep in AXES
    ],
    *[(op, op) for op in (aten.sum.default, aten.mean.default, aten.prod.default)],
    *[(op, op) for op in (aten.all.default, aten.any.default)],
    *[(op, op) for op in (aten.max.default, aten.min.default)],
    (aten.amax.default, aten.amax.default),
    *[
        (op, lambda x, op=op, dim=dim: op(x, dim))
        for op in (aten.prod.dim_int, aten.all.dim, aten.any.dim)
        for dim in (0, -1)
    ],
    (aten.all.dims, lambda x: aten.all.dims(x, [0, 2])),
    (aten.any.dims, lambda x: aten.any.dims(x, [0, 2], True)),
    (aten.sum.dim_IntList, lambda x: aten.sum.dim_IntList(x, [1], dtype=torch.float64)),
    (aten.sum.default, lambda x: aten.sum.default(x, dtype=torch.int32)),
    (aten.mean.dim, lambda x: aten.mean.dim(x, [1], dtype=torch.float64)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtypes", QUICK_AND_REST, ids=["quick", "rest"])
def test_of_one_tensor(layout: str, dtypes: list[torch.dtype]) -> None:
    check_rows([call for _, call in ROWS], layout, dtypes)


def test_of_no_dimensions() -> None:
    x = torch.tensor(3.0)
    check(lambda x: [x + 1, x.sum(), x.mean(), x.amax(), x * torch.ones(2), x.exp().sum([])], x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes_of_special_numbers(dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        rows = [[float("nan"), 1], [float("inf"), -1], [float("-inf"), 2], [-1, -2]]
        x = torch.tensor(rows, dtype=dtype)
    elif dtype == torch.bool:
        x = torch.tensor([[True, False], [False, False]])
    else:
        limits = torch.iinfo(dtype)
        x = torch.tensor([[limits.max, limits.max], [limits.min, limits.min]], dtype=dtype)
    check(lambda x: [x.amax(1), x.amin(1), x.amax(0), x.amin(0), x.max(), x.min()], x)


def test_each_rule_has_a_sample() -> None:
    assert {row[0] for row in ROWS} == set(RULES)
