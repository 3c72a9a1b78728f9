from __future__ import annotations

import torch

from tests.lower.compositions.samples import Row, X, Y, cases, check

aten = torch.ops.aten


ROWS: list[Row] = [
    *[(aten._softmax.default, lambda x, d=d: aten._softmax(x, d, False), [X]) for d in (0, 1, -1)],
    *[
        (aten._log_softmax.default, lambda x, d=d: aten._log_softmax(x, d, False), [X])
        for d in (0, 1)
    ],
    (
        aten._softmax_backward_data.default,
        lambda g, y: aten._softmax_backward_data(g, y, 1, y.dtype),
        [X, Y],
    ),
    (
        aten._log_softmax_backward_data.default,
        lambda g, y: aten._log_softmax_backward_data(g, y, 0, y.dtype),
        [X, Y],
    ),
    (aten.logsumexp.default, lambda x: aten.logsumexp(x, [1]), [X]),
    (aten.logsumexp.default, lambda x: aten.logsumexp(x, [0, 1], True), [X]),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
