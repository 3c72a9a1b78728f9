"""Small products: all orders of strides, sizes about the widths of vectors, sums and no sums."""

from __future__ import annotations

import ctypes
import itertools
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from adjoint.runtime.cpu.products import gemm
from adjoint.runtime.cpu.small_products import MAX_MULTIPLICATIONS, MIN_CONTIGUOUS_INNER
from tests.lowering import program_of


def multiply(
    a: Tensor, b: Tensor, result: Tensor, adds: bool = False, flushes: bool = False
) -> None:
    """Compute a b by native code, of factors with unit stride along their last or first axis."""
    words: list[int] = []
    for factor, turned in ((a, a.stride(1) != 1), (b, b.stride(1) != 1)):
        words += [factor.data_ptr(), factor.stride(1 if turned else 0), ord("NT"[turned])]
    (rows, inner), columns = a.shape, b.shape[1]
    words += [result.data_ptr(), result.stride(0), rows, columns, inner, int(adds), 0, 0]
    given = np.array(words, dtype=np.int64)
    code = gemm(result.dtype, flushes)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code)(given.ctypes.data, 1)


def matrix(rows: int, columns: int, turned: bool, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows are further apart than they are long."""
    if turned:
        return torch.randn(columns, rows + 3, dtype=dtype)[:, 1 : rows + 1].t()
    return torch.randn(rows, columns + 3, dtype=dtype)[:, 1 : columns + 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    numbers = random.Random(0)
    close = 100 * torch.finfo(dtype).eps
    orders = list(itertools.product((False, True), repeat=4))
    for count in range(400):
        m, n, k = (numbers.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31]) for _ in range(3))
        a_turned, b_turned, adds, flushes = orders[count % len(orders)]
        a, b = matrix(m, k, a_turned, dtype), matrix(k, n, b_turned, dtype)
        around = torch.randn(m + 2, n + 5, dtype=dtype)
        expected = around.clone()
        inside = expected[1 : m + 1, 2 : n + 2]
        inside.copy_(a @ b + (inside if adds else 0))
        multiply(a, b, around[1 : m + 1, 2 : n + 2], adds, flushes)
        # What is around the result stays as it was.
        torch.testing.assert_close(around, expected, rtol=close, atol=close)


def test_what_is_not_finite_stays_so() -> None:
    a, b = torch.ones(4, 16), torch.ones(16, 8)
    a[0, 3], a[1, 2], b[5, 5] = torch.inf, torch.nan, -torch.inf
    for right in (b, b.t().contiguous().t()):
        found = torch.empty(4, 8)
        multiply(a, right, found)
        assert torch.equal(found.isnan(), (a @ b).isnan())
        assert torch.equal(found.isinf(), (a @ b).isinf())


def test_large_products_and_short_sums_are_right_too() -> None:
    """These are left to the BLAS."""
    side = round(MAX_MULTIPLICATIONS ** (1 / 3)) + 1
    short = MIN_CONTIGUOUS_INNER - 1
    for m, n, k, turned in ((side, side, side, False), (8, 8, short, True), (1 << 20, 1, 1, False)):
        a, b = matrix(m, k, False), matrix(k, n, turned)
        found = torch.empty(m, n, dtype=torch.float64)
        multiply(a, b, found)
        torch.testing.assert_close(found, a @ b)


def test_a_network_of_small_layers() -> None:
    def network(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        hidden = (x @ w.t()).tanh()
        return [(hidden @ v).tanh(), hidden.t() @ x]

    generator = torch.Generator().manual_seed(1)
    shapes = ((7, 20), (19, 20), (19, 9))
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    torch.testing.assert_close(program_of(network, inputs)(list(inputs)), network(*inputs))
