"""Derivatives through operators with bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import adjoint

Function = Callable[[Tensor], Tensor]


def branch(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(
        x.sum() > 0, lambda a: (a**3).sum(), lambda a: (a.sin() * a).sum(), (x,)
    )
    return result


def branch_in_python(x: Tensor) -> Tensor:
    return (x**3).sum() if x.sum() > 0 else (x.sin() * x).sum()


def one_sided(x: Tensor) -> Tensor:
    """Only one branch depends on x differentiably: the other gives it a zero."""
    result: Tensor = torch.cond(
        x.sum() > 0, lambda a: (a**2).sum(), lambda a: (a * 0).detach().sum(), (x,)
    )
    return result


def one_sided_in_python(x: Tensor) -> Tensor:
    return (x**2).sum() if x.sum() > 0 else x.sum() * 0


def scanned(x: Tensor) -> Tensor:
    carry: Tensor = scan(lambda c, a: (c * a + a, c.sin()), torch.ones((), dtype=x.dtype), x)[0]
    return carry


def scanned_in_python(x: Tensor) -> Tensor:
    carry = torch.ones((), dtype=x.dtype)
    for a in x:
        carry = carry * a + a
    return carry


def mapped(x: Tensor) -> Tensor:
    def each(a: Tensor, *_: Any) -> Tensor:
        return a.sin() * a

    result: Tensor = map_rows(each, x).sum()
    return result


def mapped_in_python(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


PAIRS = [
    (branch, branch_in_python),
    (one_sided, one_sided_in_python),
    (scanned, scanned_in_python),
    (mapped, mapped_in_python),
]


def twice(grad: Any, function: Function) -> Function:
    derivative: Function = grad(lambda x: grad(function)(x).sin().sum())
    return derivative


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("function", "meaning"), PAIRS, ids=lambda f: f.__name__)
def test_derivatives_are_those_of_the_meaning(
    function: Function, meaning: Function, sign: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, dtype=torch.float64, generator=generator) * sign
    v = torch.rand(4, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(adjoint.grad(function)(x), torch.func.grad(meaning)(x))
    torch.testing.assert_close(twice(adjoint.grad, function)(x), twice(torch.func.grad, meaning)(x))
    pushed = adjoint.jvp(function, (x,), (v,))[1]
    torch.testing.assert_close(pushed, torch.func.jvp(meaning, (x,), (v,))[1])
