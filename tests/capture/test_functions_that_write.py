"""Custom autograd functions that write to their arguments are refused where Dynamo is not there."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from torch.autograd import Function

from tests.parity import leaf, plain, refused


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * 2


class WritesUnsaid(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        y.add_(1)
        return x * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return cotangent * 2, None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: Dirty.apply(x * 1),  # type: ignore[no-untyped-call]
        lambda x, y: WritesUnsaid.apply(x, y),  # type: ignore[no-untyped-call]
    ],
)
def test_a_function_that_writes_to_its_arguments_is_refused(function: Any) -> None:
    error = refused(function, lambda: (leaf(3), plain(3)))
    assert "writes to its arguments" in error.why
