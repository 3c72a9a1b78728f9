from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import adjoint
from tests.lower.test_nests import text


def test_a_sum_of_everything_is_put_together_from_chunks() -> None:
    assert text(lambda x: x.sum(), torch.ones(50)) == (
        "kernel kernel(b0: f32 written, b1: f32 written, b2: f32; chunks)\n"
        "    parallel for t in range(chunks):\n"
        "        b0[t] = 0.0\n"
        "        var total0 = 0.0\n"
        "        vector for r in range(((50 * t) // chunks), ((50 * (t + 1)) // chunks)):\n"
        "            total0 += b2[r]\n"
        "        b0[t] += total0\n"
        "    for c in range(1, chunks):\n"
        "        b0[0] += b0[((c * 1) + 0)]\n"
        "    b1[0] = b0[0]\n"
    )


def test_a_sum_over_many_rows_is_taken_in_blocks() -> None:
    assert text(lambda x: x.sum(0), torch.ones(500, 40)) == (
        "kernel kernel(b0: f32 written, b1: f32 written, b2: f32 written, b3: f32; chunks)\n"
        "    parallel for t in range(chunks):\n"
        "        vector for k in range(40):\n"
        "            b0[((t * 40) + k)] = 0.0\n"
        "        vector for k in range(40):\n"
        "            b1[((t * 40) + k)] = 0.0\n"
        "        first = ((500 * t) // chunks)\n"
        "        last = ((500 * (t + 1)) // chunks)\n"
        "        for b in range(((((last - first) + 256) - 1) // 256)):\n"
        "            begin = (first + (b * 256))\n"
        "            for r in range(begin, minimum((begin + 256), last)):\n"
        "                vector for i1 in range(40):\n"
        "                    b1[((t * 40) + i1)] += b3[((r * 40) + i1)]\n"
        "            vector for k in range(40):\n"
        "                b0[((t * 40) + k)] += b1[((t * 40) + k)]\n"
        "                b1[((t * 40) + k)] = 0.0\n"
        "    for c in range(1, chunks):\n"
        "        vector for k in range(40):\n"
        "            b0[k] += b0[((c * 40) + k)]\n"
        "    vector for k in range(40):\n"
        "        b2[k] = b0[k]\n"
    )


@pytest.mark.parametrize("shape", [(0, 20), (1, 20), (20, 0), (257, 20), (300, 3, 20), (50000, 2)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_blocks_of_any_number_of_rows(shape: tuple[int, ...], dynamic: bool) -> None:
    def sums(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * 2).sum(0), (x * 3).sum()]

    def others(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * 2).sum((0, 1)), (x * 2).sum(0), (x * 2).prod(0)]

    torch._dynamo.reset()
    function = sums if len(shape) == 2 else others
    compiled = torch.compile(function, backend="adjoint", dynamic=dynamic)
    if dynamic:
        compiled(torch.ones([size + 7 for size in shape], dtype=torch.float64))
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape).cos()
    torch.testing.assert_close(compiled(x), function(x))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("shape", [(20000, 30), (60000, 5), (300000,), (2000, 10, 30)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mul(3).sum(0),
        lambda x: x.mul(3).sum(),
        lambda x: x.mul(3).mean(0),
        lambda x: x.mul(3).var(0),
        lambda x: x.exp().norm(),
    ],
)
def test_sums_over_many_rows_are_precise(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    """Were they added one by one, errors would be ten times as large.

    The target is native, whatever the default is: within a block of rows the bound needs the
    partial sums of vector lanes, and the evaluator adds one row after another.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.rand(shape) + 1
    compiled = adjoint.compile(function, target="native")
    assert error(compiled(x), function(x.double())) < 1e-6


def test_a_scatter_goes_to_memory_of_the_thread_first() -> None:
    made = text(
        lambda x, i, s: x.index_add(0, i, s),
        torch.zeros(3),
        torch.tensor([0, 1, 1, 2]),
        torch.ones(4),
    )
    assert "b0[((t * 3) + k)] = 0" in made
    assert "+= b" in made
