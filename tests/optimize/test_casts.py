from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.graph.verify import verify
from adjoint.optimize.casts import WIDER, cancel_casts
from tests.rewriting import assert_same, calls, graph_of

CAST = torch.ops.aten._to_copy.default
HALF = torch.randn(5, dtype=torch.bfloat16)


def casts(function: Callable[..., Any], *inputs: Any) -> int:
    module = graph_of(function, *inputs)
    made = cancel_casts(module)
    verify(made)
    assert_same(module, made, *inputs)
    return calls(made, CAST)


def test_a_cast_to_a_wider_dtype_and_back_is_nothing() -> None:
    assert casts(lambda a: a.sin().float().bfloat16().sin(), HALF) == 0
    assert casts(lambda a: a.sin().double().float().sin(), HALF) == 1
    assert casts(lambda a: a.sin().float().double().float().bfloat16(), HALF) == 0


def test_a_cast_to_the_same_dtype_is_nothing() -> None:
    assert casts(lambda a: a.sin().to(torch.bfloat16, copy=True).sin(), HALF) == 0


def test_a_copy_with_the_same_strides_is_nothing() -> None:
    clone = torch.ops.aten.clone.default
    inputs = torch.randn(3, 4)

    def copies(function: Callable[..., Any]) -> int:
        module = graph_of(function, inputs)
        made = cancel_casts(module)
        assert_same(module, made, inputs)
        return calls(made, clone)

    assert copies(lambda a: a.sin().clone().cos()) == 0
    assert copies(lambda a: a.sin().clone()) == 0
    assert copies(lambda a: a.sin().t().contiguous().cos()) == 1
    assert copies(lambda a: a.clone().cos()) == 1  # a write to the input must not show
    assert copies(lambda a: (b := a.sin(), b.clone())) == 1


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a: a.sin().bfloat16().float().sin(), 2),  # rounds
        (lambda a: a.sin().half().bfloat16().sin(), 2),
        (lambda a: a.sin().long().float().sin(), 2),
        (lambda a: a.sin().float().sin().bfloat16(), 1),
    ],
)
def test_what_rounds_stays(function: Callable[..., Any], left: int) -> None:
    assert casts(function, torch.randn(5)) == left


def test_a_copy_of_an_input_stays_a_copy() -> None:
    assert casts(lambda a: a.to(torch.bfloat16, copy=True), HALF) == 1
    assert casts(lambda a: a.float().bfloat16(), HALF) == 2


@pytest.mark.parametrize("dtype", WIDER)
def test_wider_dtypes_hold_every_number(dtype: torch.dtype) -> None:
    if dtype is torch.bool:
        every = torch.tensor([False, True])
    elif dtype.itemsize == 2:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    else:
        every = torch.randint(-(2**31), 2**31, (4096,)).to(torch.int32).view(dtype)
    for wider in WIDER[dtype]:
        back = every.to(wider).to(dtype)
        torch.testing.assert_close(back, every, rtol=0, atol=0, equal_nan=True)
