"""Arguments for operators, and calls of operators with them, compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.lowering import check

SLOW = pytest.mark.slow
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64, *HALVES]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small numbers, so that sums of them are exact and their order does not matter."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(-3, 4, shape, generator=generator)
    return (made.abs() if dtype == torch.uint8 else made).to(dtype)


def places(below: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, below, shape, generator=generator).to(dtype)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: numbers(3, 4, 5, dtype=dtype),
    "transposed": lambda dtype: numbers(5, 4, 3, dtype=dtype).permute(2, 1, 0),
    "sliced": lambda dtype: numbers(3, 8, 7, dtype=dtype)[:, ::2, 1:6],
    "expanded": lambda dtype: numbers(3, 1, 5, dtype=dtype).expand(3, 4, 5),
    "middle": lambda dtype: numbers(4, 3, 5, dtype=dtype).transpose(0, 1),
    "ones": lambda dtype: numbers(1, 4, 1, dtype=dtype),
}

# The dtypes of a test that is not slow, and the rest.
QUICK_AND_REST = [
    [torch.float32, torch.int32],
    pytest.param([torch.float64, *HALVES, torch.int64, torch.uint8, torch.bool], marks=SLOW),
]

# An operator, and a call of it with a tensor of three dimensions.
Row = tuple[Any, Callable[..., Any]]

# An operator, a call of it, and what to call it with.
Sample = tuple[Any, Callable[..., Any], Callable[[torch.dtype], list[torch.Tensor]]]


def takes(call: Callable[..., Any], *inputs: Any) -> bool:
    try:
        call(*inputs)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def check_rows(calls: Sequence[Callable[..., Any]], layout: str, dtypes: list[torch.dtype]) -> None:
    """All in one program, with those of `dtypes` that eager takes."""
    inputs = [LAYOUTS[layout](dtype) for dtype in dtypes]

    cases = [
        (call, place)
        for call in calls
        for place in range(len(inputs))
        if takes(call, inputs[place])
    ]
    check(lambda *tensors: [call(tensors[place]) for call, place in cases], *inputs)


def check_samples(sample: Sample) -> None:
    _, call, make = sample
    for dtype in [torch.float32, torch.float16, torch.int64, torch.bool]:
        inputs = make(dtype)
        if takes(call, *inputs):
            # Something to fuse around what may be declined.
            check(lambda *tensors: [call(*tensors), tensors[0].logical_not()], *inputs)
