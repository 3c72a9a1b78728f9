"""The derivatives that `vjp` and `linearize` return, against `torch.func`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import adjoint
from tests.functions import close, of_tree, tree, vector
from tests.parity import leaf, plain

func: Any = torch.func


def test_vjp() -> None:
    x, cotangent = plain(3), plain(4)
    value, pull_back = adjoint.vjp(vector, x)
    wanted, theirs = func.vjp(vector, x)
    close(value, wanted)
    assert not value.requires_grad
    close(pull_back(cotangent), theirs(cotangent))
    close(pull_back(2 * cotangent), theirs(2 * cotangent))


def test_vjp_of_trees() -> None:
    def function(given: dict[str, Any], y: Tensor) -> dict[str, Tensor]:
        return {"one": of_tree(given) * y, "two": given["a"].exp()}

    given, y = tree(), plain(2)
    value, pull_back = adjoint.vjp(function, given, y)
    wanted, theirs = func.vjp(function, given, y)
    close(value, wanted)
    cotangents = {"one": plain(2), "two": plain(2, 3)}
    close(pull_back(cotangents), theirs(cotangents))


def test_vjp_with_a_result_that_depends_on_nothing() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach().sum(), torch.ones(2, dtype=torch.float64)

    x = plain(3)
    value, pull_back = adjoint.vjp(function, x)
    close(pull_back(value), (torch.zeros_like(x),))


def test_autograd_through_vjp() -> None:
    x, cotangent = leaf(3), leaf(4)
    results = []
    for namespace in (adjoint, func):
        value, pull_back = namespace.vjp(vector, x)
        (pulled,) = pull_back(cotangent)
        assert value.requires_grad
        results.append(torch.autograd.grad((pulled.square().sum() + value.sum()), [x, cotangent]))
    close(*results)


def test_linearize_takes_any_number_of_tangents() -> None:
    x, tangents = plain(3), plain(2, 3)
    value, push_forward = adjoint.linearize(vector, x)
    close(value, vector(x))
    for tangent in tangents:
        close(push_forward(tangent), func.jvp(vector, (x,), (tangent,))[1])


def test_linearize_with_a_result_that_depends_on_nothing() -> None:
    x = plain(3)
    _, push_forward = adjoint.linearize(lambda x: (x.sin(), torch.ones(2)), x)
    close(push_forward(x), (x.cos() * x, torch.zeros(2)))
