from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.torch_private import functorch


def test_the_innermost_tensor_under_levels_of_torch_func() -> None:
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.append(functorch.innermost(x))
        return x.sum()

    xs = torch.ones(2, 3)
    torch.func.vmap(torch.func.grad(look))(xs)
    assert not functorch.is_functorch_wrapper(seen[0])
    assert seen[0].shape == (2, 3)
    assert functorch.innermost(xs) is xs
    assert functorch.innermost(3) == 3


def test_levels_that_are_left_are_said() -> None:
    def count(x: Tensor) -> Tensor:
        with functorch.outside_functorch() as levels:
            assert len(levels) == 2
            assert not functorch.functorch_is_active()
        return x.sum()

    torch.func.vmap(torch.func.grad(count))(torch.ones(2, 3))
    with functorch.outside_functorch() as levels:
        assert not levels


def test_a_level_applies_a_custom_function_by_its_rule() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return x * 3, in_dims[0]

    xs = torch.ones(2, 3)
    batched: Any = torch.func.vmap(lambda x: functorch.applied_by_level(Doubled, x))(xs)
    assert torch.equal(batched, xs * 3)
