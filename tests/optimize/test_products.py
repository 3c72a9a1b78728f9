from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.verify import verify
from adjoint.optimize.products import join_products
from tests.rewriting import calls, graph_of, targets

aten = torch.ops.aten
MM, CAT, ADD, T = aten.mm.default, aten.cat.default, aten.add.Tensor, aten.t.default
VIEW = aten.view.default


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


A, B = drawn(3, 8, 6), drawn(3, 8, 5)
WEIGHT = drawn(6, 7)


def short(a: Tensor, b: Tensor, index: int) -> Tensor:
    return a[index, :2].t() @ b[index, :2]


def joined(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    module = graph_of(function, *inputs)
    made = join_products(module)
    verify(made)
    for one, other in zip(evaluate(module, inputs), evaluate(made, inputs), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one)
    return targets(made)


@pytest.mark.parametrize(
    ("function", "products"),
    [
        # One operand in common: half as many products.
        (lambda a, b, w: a[0] @ w + a[1] @ w, 1),
        (lambda a, b, w: (b0 := a[0].t()) @ a[1] + b0 @ a[2], 1),
        (lambda a, b, w: a[0] @ w + (a[1].sin() @ w + a[2].cos() @ w), 1),
        (lambda a, b, w: a[0] @ w + (b[0] @ b[1].t() @ a[2] @ w), 3),
        # Short: 2 rows are summed over, for results of 6 times 5.
        (lambda a, b, w: short(a, b, 0) + short(a, b, 1) + short(a, b, 2), 1),
        (lambda a, b, w: short(a, b, 0) + (short(a, b, 1) + b[0, :6]) + short(a, b, 2), 1),
        (lambda a, b, w: reduce(torch.add, [a[i, :2].t().sin() @ b[i, :2] for i in range(3)]), 1),
        # One after another, with few rows.
        (lambda a, b, w: torch.cat([a[0] @ w, a[1, :2] @ w]), 1),
        (lambda a, b, w: torch.stack([a[i].sin() @ w for i in range(3)]), 1),
    ],
)
def test_what_is_joined(function: Callable[..., Any], products: int) -> None:
    assert joined(function, A, B, WEIGHT).count(MM) == products


@pytest.mark.parametrize(
    "function",
    [
        # As many rows are summed over as the results have.
        lambda a, b, w: a[0].t() @ b[0] + a[1].t() @ b[1],
        # Two products only.
        lambda a, b, w: short(a, b, 0) + short(a, b, 1),
        # Something else reads a product, or a sum of two.
        lambda a, b, w: ((p := a[0] @ w) + a[1] @ w) * p.sin()[0],
        # A factor, and a sum that broadcasts.
        lambda a, b, w: torch.add(a[0] @ w, a[1] @ w, alpha=2),
        lambda a, b, w: a[0] @ w + a[1, :1] @ w,
        # Different weights, another axis, the same product twice.
        lambda a, b, w: torch.cat([a[0] @ w, a[1] @ w.sin()]),
        lambda a, b, w: torch.cat([a[0] @ w, a[1] @ w], 1),
        lambda a, b, w: torch.cat([p := a[0] @ w, p]),
        lambda a, b, w: (p := a[0] @ w) + p,
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    assert joined(function, A, B, WEIGHT) == targets(graph_of(function, A, B, WEIGHT))


def test_many_rows_stay_apart() -> None:
    def function(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return torch.cat([a @ w, b @ w])

    inputs = drawn(600, 4), drawn(600, 4), drawn(4, 4)
    assert joined(function, *inputs) == [MM, MM, CAT]


def test_operands_that_are_one_tensor_already() -> None:
    """The parts of `a` in order are a view of it, whatever the order of the terms."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        return b[2].t() @ a[2] + (b[0].t() @ a[0] + b[1].t() @ a[1])

    a, b = drawn(3, 2, 6), drawn(3, 2, 5).sin()
    assert joined(function, a, b) == [VIEW, T, VIEW, MM]


def test_the_weights_of_a_loop() -> None:
    """One product for each weight, however many steps there are, and gradients are eager's."""
    steps, rows, width = 5, 3, 8

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.LSTMCell(width, width, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            hidden = cell = torch.zeros(rows, width, dtype=torch.float64)
            for step in range(steps):
                hidden, cell = self.cell(x[step], (hidden, cell))
            return hidden.sum()

    net, x = Recurrent(), drawn(steps, rows, width).requires_grad_()
    wrt = [x, *net.parameters()]
    expected = torch.autograd.grad(net(x), wrt)
    seen: list[int] = []

    def note(sighting: Any) -> None:
        if sighting.stage == "join-products" and sighting.order == 1:
            seen.append(calls(sighting.value, MM))

    backend = adjoint.backend.adjoint
    compiled = torch.compile(net, backend=lambda graph, given: backend(graph, given, observer=note))
    for one, other in zip(torch.autograd.grad(compiled(x), wrt), expected, strict=True):
        torch.testing.assert_close(one, other)
    # The recurrence itself, one product for each weight, one for the input.
    assert seen == [steps - 1 + 3]
