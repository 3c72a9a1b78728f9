from __future__ import annotations

import torch

from tests.lower.compositions.samples import Row, X, Y, cases, check

aten = torch.ops.aten


def rows_of(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(3) + 1


ROWS: list[Row] = [
    (aten.stack.default, lambda x, y: aten.stack([x, y], -1), [X, Y]),
    (aten._unsafe_index.Tensor, lambda x: aten._unsafe_index(x, [rows_of(x)]), [X]),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
