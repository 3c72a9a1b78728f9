from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch.autograd_function import autograd_function_apply
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from adjoint.torch_private.custom_functions import (
    differentiable_backwards,
    is_once_differentiable,
    was_once_differentiable,
)


def apply(function: Any, x: Tensor) -> Any:
    return function.apply(x)


class Inner(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * 3


class Outer(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return apply(Inner, cotangent)


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return apply(Inner, cotangent)


def backward_of(function: type[Function]) -> fx.GraphModule:
    """The backward as Dynamo gives it to a backend."""
    found: list[fx.GraphModule] = []

    def backend(module: fx.GraphModule, examples: Any) -> Any:
        (node,) = module.graph.find_nodes(op="call_function", target=autograd_function_apply)
        found.append(getattr(module, node.args[1].target))
        return module.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(apply, backend=backend, fullgraph=True)
    compiled(function, torch.ones(3, requires_grad=True))
    return found[0]


def applications(module: fx.GraphModule) -> int:
    return len(module.graph.find_nodes(op="call_function", target=autograd_function_apply))


def test_what_a_backward_applies_is_kept() -> None:
    assert applications(backward_of(Outer)) == 0
    with differentiable_backwards():
        assert applications(backward_of(Outer)) == 1
    assert applications(backward_of(Outer)) == 0


@pytest.mark.parametrize("function", [Outer, Once])
def test_what_is_differentiable_once_is_marked(function: type[Function]) -> None:
    with differentiable_backwards():
        backward = backward_of(function)
    assert was_once_differentiable(backward) is (function is Once)
    assert is_once_differentiable(function.backward) is (function is Once)
    assert applications(backward) == (function is Outer)


def test_a_backward_that_cannot_be_traced_breaks_the_graph() -> None:
    class Unknown(Outer):
        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> Any:
            assert cotangent is None

    with differentiable_backwards(), pytest.raises(torch._dynamo.exc.Unsupported):
        backward_of(Unknown)
