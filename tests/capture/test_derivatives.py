"""Derivatives inside of a program of what was computed before it began."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.exc import Unsupported


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def slope(energy: Tensor, x: Tensor) -> Tensor:
    # Of what is given by names Dynamo does not look at the history.
    (found,) = torch.autograd.grad(
        outputs=[(energy * x).sum()], inputs=[x], create_graph=True, allow_unused=True
    )
    return found


def test_a_graph_ends_before_a_derivative_that_goes_on_outside_of_it() -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(slope, backend="adjoint")
    expected, found = slope(x.sin(), x), compiled(x.sin(), x)
    torch.testing.assert_close(found, expected)
    wanted, got = (torch.autograd.grad(each.square().sum(), x) for each in (expected, found))
    torch.testing.assert_close(got, wanted)


def test_a_graph_that_cannot_end_there_is_refused() -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(slope, backend="adjoint", fullgraph=True)
    with pytest.raises(Unsupported, match=r"autograd.grad"):
        compiled(x.sin(), x)


def test_derivatives_that_end_at_inputs_are_compiled() -> None:
    leaf = torch.rand(3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(3, dtype=torch.float64, requires_grad=True)
    x = leaf * 2
    compiled = torch.compile(slope, backend="adjoint")
    torch.testing.assert_close(compiled(weight, x), slope(weight, x))
