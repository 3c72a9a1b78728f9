from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adjoint.loops.show import show_plan as shown
from adjoint.lower.strided_rows import ROWS_AT_ONCE
from tests.lowering import check, graph_of, lower


def text(function: Callable[..., object], *inputs: Tensor) -> str:
    check(function, *inputs)
    return shown(lower(graph_of(function, inputs)))


def halves(*shape: int) -> Tensor:
    """Numbers whose sums are exact, in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0)) / 2


def is_by_blocks(plan: str) -> bool:
    return "low + (b *" in plan


def test_a_sum_over_channels() -> None:
    assert text(lambda x: x.sum(1) * 2, halves(3, 16, 40)) == (
        "kernel kernel(b0: f32 written, b1: f32, b2: f32 written; chunks)\n"
        "    parallel for t in range(chunks):\n"
        "        first = ((120 * t) // chunks)\n"
        "        last = ((120 * (t + 1)) // chunks)\n"
        "        for o in range((first // 40), (((last + 40) - 1) // 40)):\n"
        "            low = maximum((first - (o * 40)), 0)\n"
        "            high = minimum((last - (o * 40)), 40)\n"
        "            for b in range((((high - low) + 1023) // 1024)):\n"
        "                begin = (low + (b * 1024))\n"
        "                vector for j in range(minimum((high - begin), 1024)):\n"
        "                    b0[((t * 1024) + j)] = 0.0\n"
        "                for i2 in range(16):\n"
        "                    vector for j in range(minimum((high - begin), 1024)):\n"
        "                        b0[((t * 1024) + j)] += "
        "b1[(((o * 640) + (i2 * 40)) + (begin + j))]\n"
        "                vector for j in range(minimum((high - begin), 1024)):\n"
        "                    row0 = b0[((t * 1024) + j)]\n"
        "                    row1 = (row0 * 2.0)\n"
        "                    b2[((o * 40) + (begin + j))] = row1\n"
    )


FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(1),
    "largest": lambda x: x.amax(1, keepdim=True),
    "of a function": lambda x: (x.exp() * 2).mean(1) + 1,
    "two": lambda x: (x.sum(1), (x * x).sum(1)),
    "function of two": lambda x: x.sum(1) / (x * x).sum(1),
    "softmax": lambda x: x.softmax(1),
    "variance": lambda x: x.var(1),
    "product": lambda x: x.prod(1),
    "truth": lambda x: (x > 3).any(1),
    "two axes": lambda x: x.unflatten(1, (4, 4)).sum((1, 2)),
    "first axis too": lambda x: x.sum((0, 1)),
    "with a value for each element": lambda x: (x.exp(), x.exp().sum(1)),
}


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 16, 2 * ROWS_AT_ONCE + 7), (1, 16, 33)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions_over_channels(name: str, shape: tuple[int, ...]) -> None:
    check(FUNCTIONS[name], halves(*shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_other_types(dtype: torch.dtype) -> None:
    check(lambda x: x.sum(1), (2 * halves(3, 16, 40)).to(dtype))


def test_only_strided_columns_of_few_channels_are_reduced_by_blocks() -> None:
    def total(x: Tensor) -> Tensor:
        return x.sum(1)

    assert is_by_blocks(text(total, halves(3, 16, 40)))
    assert not is_by_blocks(text(total, halves(3, 40, 16).transpose(1, 2)))
    assert not is_by_blocks(text(total, halves(3, 16, 8)))
    assert not is_by_blocks(text(total, halves(3, 300, 40)))
    assert not is_by_blocks(text(lambda x: x.sum(2), halves(3, 16, 40)))
