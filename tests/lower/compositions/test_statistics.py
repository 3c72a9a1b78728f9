from __future__ import annotations

import math

import pytest
import torch

from tests.differentiation import bridged
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 3, 7, 11, 100, 1000])
def test_equal_elements_do_not_deviate(count: int, dtype: torch.dtype) -> None:
    values = torch.tensor([0.1, 1 / 3, -77.7, 1e-20, 12345.678], dtype=dtype)
    x = values[:, None].expand(-1, count).requires_grad_()
    deviation = bridged(lambda x: x.std(-1), x)(x)
    assert not deviation.any()
    # Eager masks the derivative where the deviation is zero.
    assert not torch.autograd.grad(deviation.sum(), x)[0].any()


def test_a_small_deviation_from_a_large_mean_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1e6 + torch.randn(4, 1000, generator=generator, dtype=torch.float64)
    narrow = x.float()
    variance = bridged(lambda x: x.var(-1), narrow)(narrow)
    torch.testing.assert_close(variance, narrow.double().var(-1).float(), rtol=1e-5, atol=0)
