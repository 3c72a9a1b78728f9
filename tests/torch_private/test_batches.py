from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.torch_private.batches import is_batched, over_batch


def test_a_backward_for_a_batch() -> None:
    seen: list[bool] = []

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            seen.append(is_batched(cotangent))
            if not is_batched(cotangent):
                return cotangent * 3 * x**2
            gradient, absent = over_batch(lambda v: (v[0] * 3 * v[1] ** 2, None), [cotangent, x])
            assert absent is None
            return gradient

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    function: Any = Cube
    out, basis = function.apply(x), torch.eye(3, dtype=torch.float64)
    (rows,) = torch.autograd.grad(out, x, basis, is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(rows, torch.diag(3 * x**2))
    (second,) = torch.autograd.grad(rows.sum(), x)
    torch.testing.assert_close(second, 6 * x)
    torch.autograd.grad(function.apply(x).sum(), x)
    assert seen == [True, False]
