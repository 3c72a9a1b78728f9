"""Programs that use autograd, run once in eager and once compiled: do they see the same?

A scenario is a function of `compiled`, which it calls on functions and modules.  All that the user
sees there - gradients, what hooks were given and in which order, errors - it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch import Tensor
from torch.utils import _pytree

import adjoint.backend as backend

Compiler = Callable[..., Any]
Scenario = Callable[[Compiler], Any]


class Scenarios(list[Scenario]):
    """Scenarios that are checked in one way: `@table` over a function adds it."""

    def __call__(self, scenario: Scenario) -> Scenario:
        self.append(scenario)
        return scenario


def check(scenario: Scenario, baseline: Compiler = lambda function, **_: function) -> None:
    """Compiled, the scenario sees what it sees in eager, or by another way to compile."""
    expected = by(baseline, scenario)
    same(compiled(scenario), expected)


def by(compiler: Compiler, scenario: Scenario) -> Any:
    """What the scenario sees, by this way to compile."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return scenario(compiler)


def compiled(scenario: Scenario) -> Any:
    """What the scenario sees compiled, which something must have been."""
    runs = 0

    def counting(*arguments: Any, **options: Any) -> Callable[..., Any]:
        program = original(*arguments, **options)

        def counted(*given: Any) -> Any:
            nonlocal runs
            runs += 1
            return program(*given)

        return counted

    original = backend.compile_graph
    with (
        mock.patch.object(backend, "compile_graph", counting),
        torch._dynamo.config.patch(suppress_errors=False),
    ):
        found = by(by_backend("adjoint"), scenario)
    assert runs, "nothing was compiled"
    return found


def by_backend(backend: str) -> Compiler:
    """`torch.compile`."""

    def compiler(function: Callable[..., Any], fullgraph: bool = True) -> Any:
        return torch.compile(function, backend=backend, fullgraph=fullgraph)

    return compiler


def same(found: Any, expected: Any) -> None:
    """Trees of tensors and of other values are alike: tensors in their kind, all else exactly."""
    mine, how = _pytree.tree_flatten(found)
    theirs, expected_how = _pytree.tree_flatten(expected)
    assert how == expected_how, f"{found}\nbut in eager\n{expected}"
    for one, other in zip(mine, theirs, strict=True):
        if not isinstance(other, Tensor):
            assert one == other, f"{found}\nbut in eager\n{expected}"
            continue
        assert isinstance(one, Tensor), f"{found}\nbut in eager\n{expected}"
        assert one.requires_grad == other.requires_grad
        assert one.is_leaf == other.is_leaf
        torch.testing.assert_close(one, other)


def raised(action: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The type of the error that `action` raises; or what it returned."""
    try:
        return action(*given, **options)
    except Exception as error:  # noqa: BLE001 - whichever eager raises
        return type(error).__name__


# What several of them run, and look at ----------------------------------------------------------


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin() * y.exp()


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = (x * y).sin()
    second = first.exp() * y
    return first, second, (second * first).sum()


def fields(*tensors: Tensor) -> list[Any]:
    """`.grad` of each."""
    return [each.grad for each in tensors]
