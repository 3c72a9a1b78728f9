from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.torch_private.batches import (
    is_at_vmap_level,
    is_batched,
    is_vmapped,
    run_below_vmap,
    vmap_over_batch,
)


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
            gradient, absent = vmap_over_batch(
                lambda v: (v[0] * 3 * v[1] ** 2, None), [cotangent, x]
            )
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


def test_what_belongs_to_the_innermost_level_of_vmap() -> None:
    outer, inner = torch.ones(2, 3), torch.ones(4, 3)
    seen: list[Any] = []

    def look(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append([(is_at_vmap_level(each), is_vmapped(each)) for each in (x, y, outer)])
        return x + y

    torch.func.vmap(lambda x: torch.func.vmap(lambda y: look(x, y))(inner))(outer)
    assert seen == [[(False, True), (True, True), (False, False)]]
    assert not is_at_vmap_level(outer)


def test_running_below_a_level_of_vmap() -> None:
    fixed = torch.arange(3.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        def run(plain: list[Any], axes: tuple[int | None, ...]) -> list[Any]:
            assert [tuple(each.shape) for each in plain] == [(3, 2), (3,)]
            assert axes == (1, None)
            return [plain[0].mT + plain[1]]

        return run_below_vmap(run, [x, fixed])[0] * 2  # type: ignore[no-any-return]

    x = torch.randn(3, 2)
    found = torch.func.vmap(function, in_dims=1)(x)
    torch.testing.assert_close(found, (x.mT + fixed) * 2)
