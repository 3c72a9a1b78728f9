from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.torch_private.functions import method_is_torchs, name_of


@pytest.mark.parametrize(
    "function",
    [
        torch.sin,
        torch.einsum,
        torch.zeros,
        torch.nn.functional.linear,
        torch.nn.functional.gelu,
        torch.nn.functional.max_pool2d,
        torch.linalg.norm,
        torch.fft.fft,
        torch.autograd.grad,
        torch.ops.higher_order.cond,
        torch._C._set_grad_enabled,
        operator.getitem,
        operator.iadd,
        max,
    ],
)
def test_functions_of_torch_have_names(function: Callable[..., object]) -> None:
    name = name_of(function)
    assert name is not None
    assert name.partition(".")[0] in ("torch", "operator", "builtins", "higher_order")


def test_names_differ() -> None:
    functions: list[Any] = [torch.sin, torch.cos, torch.nn.functional.max_pool2d]
    functions += [torch.nn.functional.max_pool1d, operator.add, operator.iadd]
    assert len({*map(name_of, functions)}) == len(functions)


def _own(x: torch.Tensor) -> torch.Tensor:
    return x


def test_functions_of_the_user_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(torch.einsum)
    def replaced(*args: Any) -> Any:
        return args

    assert name_of(_own) is None
    assert name_of(replaced) is None
    # Nor has what was replaced: the name leads to another function.
    before = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", replaced)
    assert name_of(before) is None
    assert name_of(functools.partial(torch.sin)) is None


def test_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    assert method_is_torchs("sin")
    assert method_is_torchs("unflatten")
    assert not method_is_torchs("no_such_method")
    monkeypatch.setattr(torch.Tensor, "sinh", _own)
    assert not method_is_torchs("sinh")
