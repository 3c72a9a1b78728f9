from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.parity import ROUTES, Route, Row, Table, leaf, refused
from tests.versions import TORCH

HOOKS = Table()


def leaves() -> tuple[Tensor, Tensor]:
    return leaf(3), leaf(3)


@HOOKS(leaves, order=2)
def a_hook_changes_the_gradient(x: Tensor, y: Tensor) -> Any:
    z = x * y
    z.register_hook(lambda gradient: gradient * 3 + gradient.square())
    return z.sin(), z


@HOOKS(leaves, order=2)
def a_hook_sees_what_came_before(x: Tensor, y: Tensor) -> Any:
    z = x * y
    before = z.sin()
    z.register_hook(lambda gradient: gradient * 3)
    return before + z.cos()


# Dynamo 2.11 does not follow a hook that closes over a tensor.
@HOOKS(leaves, order=2, dynamo=TORCH >= (2, 13))
def a_hook_uses_other_tensors(x: Tensor, y: Tensor) -> Any:
    z = x * y
    z.register_hook(lambda gradient: gradient * x)
    return z.sin()


@HOOKS(leaves, order=2, dynamo=False)
def a_derivative_taken_inside_sees_hooks(x: Tensor, y: Tensor) -> Any:
    z = x * y
    z.register_hook(lambda gradient: gradient * 3)
    (inside,) = torch.autograd.grad(z.sin().sum(), x, create_graph=True)
    return inside * y, z


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", HOOKS, ids=str)
def test_hooks(row: Row, route: Route) -> None:
    row.check(route)


def watched(x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    y = x.sin()
    y.register_hook(seen.append)
    return y


def hook_on_an_input(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient * 3)
    return x.sin()


def hook_on_a_view(x: Tensor) -> Tensor:
    y = x.sin()[:2]
    y.register_hook(lambda gradient: gradient * 3)
    return y.sin()


def hook_with_what_came_later(x: Tensor) -> Tensor:
    y = x.sin()
    z = y.cos()
    y.register_hook(lambda gradient: gradient * z)
    return z


def removed_hook(x: Tensor) -> Tensor:
    y = x.sin()
    handle = y.register_hook(lambda gradient: gradient * 3)
    handle.remove()
    return y


def hook_after_accumulation(x: Tensor) -> Tensor:
    x.register_post_accumulate_grad_hook(lambda tensor: None)
    return x.sin()


@pytest.mark.parametrize(
    ("function", "why", "line"),
    [
        (watched, "what it does is outside the graph", "y.register_hook("),
        (hook_on_an_input, "the tensor comes from outside, or is a view", "x.register_hook("),
        (hook_on_a_view, "the tensor comes from outside, or is a view", "y.register_hook("),
        (
            hook_with_what_came_later,
            "the hook uses tensors that may have been computed later",
            "y.register_hook(",
        ),
        (removed_hook, "the graph has what the hook does to the gradient", "handle.remove()"),
        (
            hook_after_accumulation,
            "it acts when autograd runs, on a tensor that the caller has",
            "x.register_post_accumulate_grad_hook(",
        ),
    ],
)
def test_hooks_that_no_graph_can_say_are_refused(function: Any, why: str, line: str) -> None:
    error = refused(function, lambda: leaf(3))
    assert why in error.why
    assert error.source is not None
    assert error.source.text.startswith(line)


def test_backward_hooks_of_modules_are_refused() -> None:
    module = torch.nn.Linear(3, 3).double()
    module.register_full_backward_hook(lambda module, given, got: (given[0] * 2,))  # type: ignore[index]
    assert "backward hook of a module" in str(refused(lambda x: module(x), lambda: leaf(2, 3)))
    with pytest.raises(adjoint.CaptureError, match="backward hook of a module"):
        adjoint.grad(lambda x: module(x).sum())(leaf(2, 3).detach())
