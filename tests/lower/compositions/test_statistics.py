from __future__ import annotations

import math

import torch

from tests.lower.compositions.samples import Row, X, cases, check, check_declined

aten = torch.ops.aten


ROWS: list[Row] = [
    *[
        (op, lambda x, op=op, dim=dim, c=c: op(x, dim, correction=c, keepdim=c == 0), [X])
        for op in (aten.var.correction, aten.std.correction, aten.var_mean.correction)
        for dim in ([1], [0, 1], None)
        for c in (None, 0, 1)
    ],
    *[
        (aten.linalg_vector_norm.default, lambda x, o=o: aten.linalg_vector_norm(x, o, [1]), [X])
        for o in (1, 2, math.inf)
    ],
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)


def test_other_norms_are_left_to_eager() -> None:
    call = lambda x: aten.linalg_vector_norm(x, 3, [1])  # noqa: E731
    check_declined(aten.linalg_vector_norm.default, call, [X])
