from __future__ import annotations

from functools import partial
from types import FunctionType

import torch
from torch import Tensor, nn

from adjoint.explaining.calling import call, fresh, original
from adjoint.observing import unobserved


def scaled(x: Tensor, *, by: float = 2.0) -> Tensor:
    return x * by


def test_a_copy_has_a_code_object_of_its_own() -> None:
    copy = fresh(scaled)
    assert isinstance(copy, FunctionType)
    assert copy.__code__ is not scaled.__code__
    assert torch.equal(copy(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(fresh(partial(scaled, by=3.0))(torch.ones(2)), torch.full((2,), 3.0))
    linear = nn.Linear(2, 2)
    assert torch.equal(fresh(linear)(torch.ones(1, 2)), linear(torch.ones(1, 2)))


def test_what_torch_compile_returns_is_undone() -> None:
    linear = nn.Linear(2, 2)
    assert original(torch.compile(linear, backend="adjoint")) is linear
    assert original(torch.compile(scaled, backend="adjoint")) is scaled


def test_arguments_are_copied() -> None:
    def written(x: Tensor) -> Tensor:
        return x.mul_(2)

    x = torch.ones(3)
    ((result,),) = call(unobserved, written, (x,), {}, 0, {})
    assert isinstance(result, Tensor)
    assert torch.equal(result, torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))


def test_what_writes_to_its_arguments_is_differentiated() -> None:
    def written(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin().sum()

    x = torch.rand(3)
    _, (gradient,) = call(unobserved, written, (x,), {}, 1, {})
    torch.testing.assert_close(gradient, 2 * (2 * x).cos())
