"""Products with weights of 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.verify import verify
from adjoint.optimize.quantized import PACKED, multiply_integers
from tests.rewriting import calls, graph_of

ROWS, WIDTH, WEIGHTS = 5, 64, 32
X = torch.randn(ROWS, WIDTH).bfloat16()
W = torch.randint(-127, 128, (WEIGHTS, WIDTH), dtype=torch.int8)
SCALE = (torch.rand(WEIGHTS) / 50).bfloat16()


def packed(function: Callable[..., Any], *inputs: Any) -> int:
    module = graph_of(function, *inputs)
    made = multiply_integers(module)
    verify(made)
    assert len(made.graph.nodes) <= len(module.graph.nodes)
    exact = function(*(each.double() for each in inputs))
    for each in evaluate(made, inputs):
        # Eager rounds the product, and then the scaled product, to 8 bits.
        torch.testing.assert_close(each.double(), exact, rtol=0.01, atol=0.02)
    return calls(made, PACKED)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
        lambda x, w, s: s * (x @ w.to(x.dtype).t()),
        lambda x, w, s: F.linear(x[None], w.to(x.dtype)) * s,
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        lambda x, w, s: F.linear(x, s.unsqueeze(1) * w.to(x.dtype)),
    ],
)
def test_integers_are_multiplied(function: Callable[..., Any]) -> None:
    assert packed(function, X, W, SCALE) == 1


@pytest.mark.parametrize(
    "function",
    [
        # A scale for each input, one for all, or one for each row of the result.
        lambda x, w, s: F.linear(x, w.to(x.dtype) * x[0]),
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s[:1],
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s[:5, None],
        # The other side, a weight that is used again, no scale.
        lambda x, w, s: x[:, :32] @ w.to(x.dtype) * s[:1],
        lambda x, w, s: (c := w.to(x.dtype)).sum() + F.linear(x, c) * s,
        lambda x, w, s: F.linear(x, w.to(x.dtype)),
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    module = graph_of(function, X, W, SCALE)
    assert multiply_integers(module) is module


def test_other_dtypes_are_left() -> None:
    module = graph_of(lambda x, w, s: F.linear(x, w.to(x.dtype)) * s, X.float(), W, SCALE.float())
    assert multiply_integers(module) is module
    wide = graph_of(lambda x, w, s: F.linear(x, w.to(x.dtype)) * s, X, W.int(), SCALE)
    assert multiply_integers(wide) is wide


@pytest.mark.parametrize(("weights", "width"), [(31, 64), (32, 60), (19, 37)])
def test_sizes_that_the_operator_reads_beyond_are_left(weights: int, width: int) -> None:
    def function(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return F.linear(x, w.to(x.dtype)) * s

    module = graph_of(function, X[:, :width], W[:weights, :width].contiguous(), SCALE[:weights])
    assert multiply_integers(module) is module


def test_a_layer_is_trained_through() -> None:
    """The operator has no derivative; the backward graph is that of the product."""

    def function(x: Tensor) -> Tensor:
        return (F.linear(x, W.to(x.dtype)) * SCALE).float().square().sum()

    results = []
    for each in (function, adjoint.compile(function)):
        x = X.clone().requires_grad_()
        results.append(torch.autograd.grad(each(x), x)[0].float())
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=0.05)
