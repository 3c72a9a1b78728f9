from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import tensor_of
from adjoint.graph.verify import verify
from adjoint.optimize.broadcasts import SUM, push_broadcasts
from tests.rewriting import graph_of

aten = torch.ops.aten
MM = aten.mm.default


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


A, W = drawn(8, 5), drawn(5, 3)


def work_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> tuple[int, int]:
    """The multiplications of all matrix products, before and after."""
    module = graph_of(function, *inputs, dynamic=dynamic)
    made = push_broadcasts(module)
    verify(made)
    assert len(made.graph.nodes) <= len(module.graph.nodes) + 1
    for one, other in zip(evaluate(module, inputs), evaluate(made, inputs), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one)

    def work(graph_module: Any) -> int:
        products = graph_module.graph.find_nodes(op="call_function", target=MM)
        return sum(
            int(tensor_of(each).numel()) * int(tensor_of(each.args[0]).shape[1])
            for each in products
        )

    return work(module), work(made)


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        (lambda a, w: (a[:1].expand(8, 5) @ w).sin(), 120, 15),
        (lambda a, w: (a[0].expand(8, 5) @ w).sin(), 120, 15),
        (lambda a, w: (a[:1].t().expand(5, 8).t() @ w).sin(), 120, 15),
        (lambda a, w: (a @ w[:, :1].expand(5, 3)).sin(), 120, 40),
        (lambda a, w: (a @ w[:1].expand(5, 3)).sin(), 120, 0),
        (lambda a, w: (a @ w[0].expand(5, 3)).sin(), 120, 0),
        (lambda a, w: (a[:, :1].expand(8, 5) @ w).sin(), 120, 0),
        (lambda a, w: (a.t()[:1].expand(8, 8) @ a).sin(), 320, 40),
        (lambda a, w: (a @ w).sum(0).sin(), 120, 15),
        (lambda a, w: (a @ w).sum(-1, keepdim=True).sin(), 120, 40),
        # One number for all elements.
        (lambda a, w: (a.mean().expand(8, 1) @ w[:1]).sin(), 24, 0),
        (lambda a, w: (a[:, :1] @ a.mean().expand(1, 3)).sin(), 24, 0),
        (lambda a, w: (a.mean().expand(8, 1).t() @ a).sin(), 40, 0),
    ],
)
def test_less_is_multiplied(function: Callable[..., Any], before: int, after: int) -> None:
    assert work_of(function, A, W) == (before, after)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda a: a.mean().expand(8, 1).sum(0, keepdim=True).view(1).sin(), 0),
        (lambda a: a[:1].expand(8, 5).sum(0).sin(), 0),
        (lambda a: a[:1].expand(8, 5).sum(0, keepdim=True).sin(), 0),
        (lambda a: a[0].expand(4, 8, 5).sum((0, 1)).sin(), 0),
        (lambda a: a.mean().expand(8, 5).sum((-1, 0)).sin(), 0),
        # Along other axes, too; in half precision; of all elements by another operator.
        (lambda a: a[:1].expand(8, 5).sum((0, 1)).sin(), 1),
        (lambda a: a[:, :1].expand(8, 5).sum(0).sin(), 1),
        (lambda a: a.half()[:1].expand(8, 5).sum(0).sin(), 1),
    ],
)
def test_sums_of_equal_numbers(function: Callable[..., Any], count: int) -> None:
    module = graph_of(function, A)
    made = push_broadcasts(module)
    verify(made)
    assert len(made.graph.nodes) <= len(module.graph.nodes)
    for one, other in zip(evaluate(module, [A]), evaluate(made, [A]), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one)
    assert len(made.graph.find_nodes(op="call_function", target=SUM)) == count


@pytest.mark.parametrize(
    "function",
    [
        # Rows that differ, a product that something else reads, both axes summed over.
        lambda a, w: (a @ w).sin().sum(0),
        lambda a, w: (p := a @ w).sum(0) * p,
        lambda a, w: (a @ w).sum((0, 1)),
        lambda a, w: (a.unsqueeze(0).expand(2, 8, 5)[1] @ w).sin(),
        # Sums in half precision would be rounded before the product.
        lambda a, w: (a.half() @ w.half()).sum(0),
        lambda a, w: (a.bfloat16() @ w.bfloat16()[:1].expand(5, 3)).sin(),
        # Sums in another dtype than the product's.
        lambda a, w: (a.float() @ w.float()).sum(0, dtype=torch.float64),
        # One row is no repetition.
        lambda a, w: a[:1].expand(1, 5) @ w,
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    module = graph_of(function, A, W)
    assert push_broadcasts(module) is module


def test_symbolic_sizes() -> None:
    def function(a: Tensor, w: Tensor) -> Tensor:
        return (a[:1].expand(a.shape[0], a.shape[1]) @ w).sin()

    module = graph_of(function, A, W, dynamic=True)
    made = push_broadcasts(module)
    assert made is not module
    for rows in (8, 1, 4):
        inputs = [A[:rows], W]
        torch.testing.assert_close(evaluate(made, inputs), evaluate(module, inputs))


def test_tangents_that_are_all_the_same_are_propagated_once() -> None:
    """The Laplacian by forward mode: a unit vector for every point of a batch."""
    weight, points = drawn(3, 16), drawn(32, 3)

    def slope(x: Tensor) -> Tensor:
        return adjoint.grad(lambda x: (x @ weight).sin().sum())(x)  # type: ignore[no-any-return]

    def laplacian(x: Tensor) -> Tensor:
        total = torch.zeros(32, dtype=x.dtype)
        for axis in range(3):
            unit = torch.eye(3, dtype=x.dtype)[axis].expand(32, 3)
            total = total + adjoint.jvp(slope, (x,), (unit,))[1][:, axis]
        return total

    module = graph_of(laplacian, points)
    rows = [
        tensor_of(each).shape[0]
        for each in push_broadcasts(module).graph.find_nodes(op="call_function", target=MM)
    ]
    assert rows.count(1) == 3
    expected = -((points @ weight).sin() * weight.square().sum(0)).sum(1)
    torch.testing.assert_close(adjoint.compile(laplacian)(points), expected)


def test_every_rule_at_one_product() -> None:
    """A row times a column, repeated in every way, is one number."""

    def function(a: Tensor) -> Tensor:
        return (a[:1].expand(5, 5) @ a[:, :1].expand(5, 5)).sum(0, keepdim=True)

    assert work_of(function, drawn(5, 5)) == (125, 5)
