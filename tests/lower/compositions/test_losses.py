from __future__ import annotations

from typing import Any

import torch

from tests.lower.compositions.samples import Row, X, Y, cases, check

aten = torch.ops.aten


def classes_of(x: torch.Tensor) -> torch.Tensor:
    made = torch.arange(4) + 1
    return torch.where(made == 3, -100, made)


def nll_backward(x: torch.Tensor, reduction: int) -> torch.Tensor:
    loss, total = nll(x, reduction)
    result: torch.Tensor = aten.nll_loss_backward(
        loss, x, classes_of(x), None, reduction, -100, total
    )
    return result


def nll(x: torch.Tensor, reduction: int) -> Any:
    return aten.nll_loss_forward(x, classes_of(x), None, reduction, -100)


ROWS: list[Row] = [
    *[(aten.nll_loss_forward.default, lambda x, r=r: nll(x, r), [X]) for r in (0, 1, 2)],
    *[
        (
            aten.nll_loss_backward.default,
            lambda x, r=r: nll_backward(x, r),
            [X],
        )
        for r in (0, 1, 2)
    ],
    *[(aten.mse_loss.default, lambda x, y, r=r: aten.mse_loss(x, y, r), [X, Y]) for r in (0, 1, 2)],
    *[
        (aten.smooth_l1_loss.default, lambda x, y, b=b: aten.smooth_l1_loss(x, y, 1, b), [X, Y])
        for b in (0.0, 1.0, 0.3)
    ],
    (aten.huber_loss.default, lambda x, y: aten.huber_loss(x, y, 2, 0.7), [X, Y]),
    (
        aten.binary_cross_entropy_with_logits.default,
        lambda x, y: aten.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [X, Y],
    ),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
