"""Transforms of functions that close over tensors, and transforms of `torch.func` around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.parity import plain

func: Any = torch.func


def close(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs)


def layered(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: (weight @ z).tanh().square().sum()


def scalar(x: Tensor) -> Tensor:
    return (x.sin() * x.exp()).sum()


def closing_over(name: str, given: Tensor, module: Any) -> Any:
    """A transform at `given` of a function that closes over what it is given itself."""

    def transformed(x: Tensor) -> Any:
        if name == "jvp":
            return module.jvp(layered(x), (given,), (given.sin(),))[1]
        if name == "vjp":
            return module.vjp(layered(x), given)[1](given.sum())[0]
        return getattr(module, name)(layered(x))(given)

    return transformed


CLOSING = ["grad", "jacrev", "jacfwd", "hessian", "jvp", "vjp"]


@pytest.mark.parametrize("name", CLOSING)
def test_a_closure_over_a_tensor_of_a_level_of_torch_func(name: str) -> None:
    given, weights = plain(3), plain(5, 4, 3)
    mine, theirs = (closing_over(name, given, module) for module in (adjoint, func))
    close(func.vmap(mine)(weights), func.vmap(theirs)(weights))
    close(func.jacrev(mine)(weights[0]), func.jacrev(theirs)(weights[0]))
    tangents = (weights[1],)
    close(func.jvp(mine, (weights[0],), tangents), func.jvp(theirs, (weights[0],), tangents))


def test_levels_inside_and_outside_are_not_confused() -> None:
    points, scales = plain(3, 2), plain(3, 2)

    def outer(module: Any, scale: Tensor) -> Any:
        def inner(points: Tensor) -> Any:
            return func.vmap(lambda z: (z * scale).sin().sum())(points).sum()

        return module.grad(inner)(points)

    mine, theirs = (
        func.vmap(lambda scale, module=module: outer(module, scale))(scales)
        for module in (adjoint, func)
    )
    close(mine, theirs)


@pytest.mark.parametrize("name", CLOSING)
def test_a_transform_inside_another_at_a_tensor_from_outside(name: str) -> None:
    given, weight = plain(3), plain(4, 3)
    mine, theirs = (closing_over(name, given, module) for module in (adjoint, func))
    close(
        adjoint.grad(lambda x: mine(x).square().sum())(weight),
        func.grad(lambda x: theirs(x).square().sum())(weight),
    )


def test_what_is_given_besides_may_be_a_tensor_from_outside() -> None:
    given, x = plain(3), plain(3)
    gradient, besides = adjoint.grad(lambda z: (scalar(z), given), has_aux=True)(x)
    close(gradient, func.grad(scalar)(x))
    close(besides, given)


def test_torch_func_around_an_op_that_torch_differentiates_once() -> None:
    x, silu = plain(3), torch.nn.functional.silu
    mine, theirs = (
        lambda x, module=module: module.grad(lambda z: silu(z).square().sum())(x)
        for module in (adjoint, func)
    )
    close(func.jacrev(mine)(x), func.jacrev(theirs)(x))
    close(func.jacfwd(mine)(x), func.jacrev(theirs)(x))
