from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.differentiate.sweep import differentiate
from adjoint.errors import DifferentiationError
from adjoint.graph.operations import provided


def size(a: Tensor) -> Tensor:
    return torch.linalg.svd(a)[0].abs().sin().sum()  # type: ignore[no-any-return]


def phase(a: Tensor) -> Tensor:
    return torch.linalg.svd(a)[0].real.sum()  # type: ignore[no-any-return]


def matrix() -> Tensor:
    return torch.randn(3, 3, dtype=torch.complex128)


def test_a_check_of_torchs_formula_is_a_condition_in_the_graph() -> None:
    for function in (size, phase):
        module = adjoint.capture(function, matrix().requires_grad_()).graph_module
        joint = differentiate(module, [0], [0]).graph_module
        assert any(node.target is provided for node in joint.graph.nodes)


def test_a_check_that_passes_changes_nothing_and_one_that_fails_raises_torchs_error() -> None:
    a = matrix()
    torch.testing.assert_close(adjoint.grad(size)(a), torch.func.grad(size)(a))
    with pytest.raises(RuntimeError, match="up to multiplication by"):
        adjoint.grad(phase)(a)


@torch.library.custom_op("adjoint_checks::choosing", mutates_args=())
def choosing(x: Tensor) -> Tensor:
    return x * 2


choosing.register_fake(torch.empty_like)


@choosing.register_autograd
def _(ctx: Any, cotangent: Tensor) -> Tensor:
    return cotangent * (2 if torch.allclose(cotangent, cotangent.abs()) else 3)


def test_a_check_that_chooses_between_two_formulas_is_refused() -> None:
    with pytest.raises(DifferentiationError, match="its formula depends on data") as raised:
        adjoint.grad(lambda x: choosing(x).sum())(torch.ones(3))
    assert raised.value.source is not None
    assert "choosing(x).sum()" in raised.value.source.text


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_a_size_of_one_broadcasts_in_a_formula(p: float) -> None:
    """Only the derivative of a distance has a size for each pair of points."""

    def distances(x: Tensor) -> Tensor:
        return torch.cdist(x, x.sin() + 1, p=p)

    def norms(x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x[:, None] - (x.sin() + 1)[None], p, -1)
        return norm

    torch._dynamo.reset()
    compiled = torch.compile(distances, backend="adjoint", dynamic=True)
    for points in (1, 3, 1, 2):
        x = torch.randn(points, 4, dtype=torch.float64, requires_grad=True)
        found = []
        for function in (compiled, norms):
            (grad,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
            found.append((grad, *torch.autograd.grad(grad.cos().sum(), x)))
        torch.testing.assert_close(*found)
