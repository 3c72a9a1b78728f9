"""The cross-entropy of a linear head, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adjoint
from adjoint.graph import losses
from adjoint.graph.losses import linear_cross_entropy
from adjoint.optimize import heads
from adjoint.optimize.heads import chunk_cross_entropy
from tests.rewriting import calls, graph_of

ROWS, WIDTH, CLASSES = 10, 4, 7


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and a chunk has three rows."""
    monkeypatch.setitem(heads.MIN_LOGITS_BYTES, "cpu", 0)
    monkeypatch.setattr(heads, "MIN_INPUTS_OF_CLASS", 1)
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", 3)
    monkeypatch.setattr(losses, "CHUNK_BYTES", 1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


TARGET = torch.tensor([0, 6, 3, -100, 2, 2, 1, 5, -100, 4])
CLASS_WEIGHTS = torch.rand(CLASSES, dtype=torch.float64)


def chunked(function: Callable[..., Any], *inputs: Any) -> int:
    """How often the operator takes the place of a head."""
    return calls(chunk_cross_entropy(graph_of(function, *inputs), (0,)), linear_cross_entropy)


HEADS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w, b: F.cross_entropy(F.linear(x, w), TARGET),
    "bias": lambda x, w, b: F.cross_entropy(F.linear(x, w, b), TARGET),
    "sum": lambda x, w, b: F.cross_entropy(x @ w.t(), TARGET, reduction="sum"),
    "classes": lambda x, w, b: F.cross_entropy(F.linear(x, w, b), TARGET, CLASS_WEIGHTS),
    "ignored": lambda x, w, b: F.cross_entropy(F.linear(x, w), TARGET % 7, ignore_index=2),
    "batch": lambda x, w, b: F.cross_entropy(
        F.linear(x.view(2, 5, WIDTH), w).view(-1, CLASSES), TARGET
    ),
    "nll": lambda x, w, b: F.nll_loss(F.linear(x, w).log_softmax(-1), TARGET),
}


@pytest.mark.parametrize("name", HEADS)
def test_values_and_derivatives_are_those_of_eager(name: str) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return HEADS[name](x.sin(), w, b)

    inputs = [drawn(ROWS, WIDTH), drawn(CLASSES, WIDTH), drawn(CLASSES)]
    assert chunked(function, *inputs) == 1
    wrt = [each.requires_grad_() for each in inputs[: 3 if name in ("bias", "classes") else 2]]
    results = []
    for one in (function, adjoint.compile(function)):
        loss = one(*inputs)
        gradients = torch.autograd.grad(3 * loss, wrt, create_graph=True)
        penalty = sum((each * each.cos()).sum() for each in gradients)
        assert isinstance(penalty, Tensor)
        results.append([loss, *gradients, *torch.autograd.grad(penalty + loss, wrt)])
        first = torch.autograd.grad(2 * one(*inputs), wrt)
        results[-1] += first
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_a_frozen_head_has_no_gradient() -> None:
    weight = drawn(CLASSES, WIDTH)

    def function(x: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight), TARGET)

    made = chunk_cross_entropy(graph_of(function, drawn(ROWS, WIDTH)), (0,))
    (node,) = made.graph.find_nodes(op="call_function", target=linear_cross_entropy)
    assert node.args[-1] == [True, True, False, False]
    x = drawn(ROWS, WIDTH).requires_grad_()
    (expected,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(adjoint.compile(function)(x), x)
    torch.testing.assert_close(found, expected)


def test_half_precision_is_widened_as_in_eager() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy((x @ w.t()).float(), TARGET)

    inputs = [each.bfloat16().requires_grad_() for each in (drawn(10, 4), drawn(7, 4))]
    assert chunked(function, *inputs) == 1
    loss, found = function(*inputs), adjoint.compile(function)(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss)
    for one, other in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(loss, inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)


def test_without_any_counted_row() -> None:
    target = torch.full((ROWS,), -100)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w), target)

    inputs = drawn(ROWS, WIDTH).requires_grad_(), drawn(CLASSES, WIDTH)
    for each in (function, adjoint.compile(function)):
        loss = each(*inputs)
        assert loss.isnan()
        assert not torch.autograd.grad(loss, inputs[0])[0].any()


@pytest.mark.parametrize(
    "function",
    [
        # The logits, or the logarithms, are used again; a loss for each row; smoothed labels.
        lambda x, w: (z := F.linear(x, w)).sum() + F.cross_entropy(z, TARGET),
        lambda x, w: F.nll_loss(lp := F.linear(x, w).log_softmax(1), TARGET) + lp.sum(),
        lambda x, w: F.cross_entropy(F.linear(x, w), TARGET, reduction="none"),
        lambda x, w: F.cross_entropy(F.linear(x, w), TARGET.clamp(0), label_smoothing=0.1),
        # Logits that are changed, rounded, or softmax over rows.
        lambda x, w: F.cross_entropy(F.linear(x, w).tanh(), TARGET),
        lambda x, w: F.cross_entropy(F.linear(x, w).float(), TARGET),
        lambda x, w: F.nll_loss(F.linear(x, w).log_softmax(0), TARGET),
        # The weights of classes have a derivative.
        lambda x, w: F.cross_entropy(F.linear(x, w), TARGET, x[0].sum() * CLASS_WEIGHTS),
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    assert chunked(function, drawn(ROWS, WIDTH), drawn(CLASSES, WIDTH)) == 0


def test_small_logits_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn(ROWS, WIDTH), drawn(CLASSES, WIDTH)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, w), TARGET)

    monkeypatch.setattr(heads, "MIN_INPUTS_OF_CLASS", WIDTH + 1)
    assert chunked(function, *inputs) == 0
    monkeypatch.setattr(heads, "MIN_INPUTS_OF_CLASS", WIDTH)
    monkeypatch.setitem(heads.MIN_LOGITS_BYTES, "cpu", 8 * ROWS * CLASSES + 1)
    assert chunked(function, *inputs) == 0


def test_under_a_transform() -> None:
    head = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
    parameters = {name: each.detach() for name, each in head.named_parameters()}

    def loss(parameters: Any, x: Tensor) -> Any:
        return F.cross_entropy(torch.func.functional_call(head, parameters, (x,)), TARGET)

    x = drawn(ROWS, WIDTH)
    found, expected = adjoint.grad(loss)(parameters, x), torch.func.grad(loss)(parameters, x)
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each)
