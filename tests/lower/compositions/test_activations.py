from __future__ import annotations

import torch

from tests.lower.compositions.samples import Row, X, cases, check

aten = torch.ops.aten


ROWS: list[Row] = [
    (aten.glu.default, lambda x: aten.glu(x, 1), [X]),
    (aten.log_sigmoid_forward.default, aten.log_sigmoid_forward, [X]),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
