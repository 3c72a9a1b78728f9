from __future__ import annotations

import torch

from tests.lower.compositions.samples import Row, X, cases, check, check_declined, random

aten = torch.ops.aten


ROWS: list[Row] = [
    (aten.addmm.default, aten.addmm, [random(5), random(4, 6), random(6, 5)]),
    *[
        (aten.mm.default, aten.mm, [random(m, k), random(k, n, seed=1)])
        for m, k, n in [(6, 1, 7), (6, 4, 7), (6, 7, 1), (6, 7, 3), (1, 6, 7), (4, 6, 7), (2, 2, 2)]
    ],
    *[
        (aten.bmm.default, aten.bmm, [random(3, m, k), random(3, k, n, seed=1)])
        for m, k, n in [(6, 1, 7), (6, 4, 7), (6, 7, 1), (6, 7, 3), (1, 6, 7), (4, 6, 7), (2, 2, 2)]
    ],
    (aten.baddbmm.default, aten.baddbmm, [random(2, 3, 5), random(2, 3, 4), random(2, 4, 5)]),
    (aten.baddbmm.default, aten.baddbmm, [random(2, 6, 7), random(2, 6, 9), random(2, 9, 7)]),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)


def test_a_scaled_sum_is_left_to_the_library() -> None:
    call = lambda *a: aten.addmm(*a, beta=2, alpha=3)  # noqa: E731
    check_declined(aten.addmm.default, call, [random(5), X, random(6, 5)])
