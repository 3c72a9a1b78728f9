from __future__ import annotations

from collections.abc import Callable

import torch

from tests.lower.compositions.samples import Row, X, Y, cases, check, random

aten = torch.ops.aten


def channels_last(seed: int) -> Callable[[torch.dtype], torch.Tensor]:
    made = random(2, 6, 4, 5, seed=seed)
    return lambda dtype: made(dtype).to(memory_format=torch.channels_last)


ROWS: list[Row] = [
    (
        aten.native_layer_norm.default,
        lambda x, w, b: aten.native_layer_norm(x, [6], w, b, 1e-5),
        [X, random(6), random(6, seed=3)],
    ),
    (
        aten.native_layer_norm.default,
        lambda x: aten.native_layer_norm(x, [3, 2], None, None, 1e-5),
        [random(4, 3, 2)],
    ),
    (
        aten.native_layer_norm_backward.default,
        lambda g, x, w, b: aten.native_layer_norm_backward(
            g, x, [6], *aten.native_layer_norm(x, [6], w, b, 1e-5)[1:], w, b, [True, True, True]
        ),
        [Y, X, random(6), random(6, seed=3)],
    ),
    (
        aten._fused_rms_norm.default,
        lambda x, w: aten._fused_rms_norm(x, [6], w, None),
        [X, random(6)],
    ),
    (
        aten.native_group_norm.default,
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5),
        [random(2, 6, 5), random(6), random(6, seed=3)],
    ),
    (
        aten.native_group_norm_backward.default,
        lambda g, x, w: aten.native_group_norm_backward(
            g, x, *aten.native_group_norm(x, w, w, 2, 6, 5, 3, 1e-5)[1:], w, 2, 6, 5, 3, [True] * 3
        ),
        [random(2, 6, 5, seed=4), random(2, 6, 5), random(6)],
    ),
    (
        aten.native_group_norm.default,
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 20, 3, 1e-5),
        [channels_last(0), random(6), random(6, seed=3)],
    ),
    (
        aten.native_group_norm_backward.default,
        lambda g, x, w, m, r: aten.native_group_norm_backward(
            g, x, m, r, w, 2, 6, 20, 3, [True] * 3
        ),
        [channels_last(4), channels_last(0), random(6), random(2, 3), random(2, 3, seed=1)],
    ),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
