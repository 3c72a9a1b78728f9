from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, fx

import adjoint
from adjoint.partition.sizes import read_sizes_of, sizes_beside
from adjoint.torch_private import symbols
from tests.parity import leaf
from tests.versions import TORCH

aten = torch.ops.aten


def captured(*sizes: int) -> tuple[fx.Graph, list[fx.Node]]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x[:, None] * y).sin()

    inputs = [torch.rand(size) for size in sizes]
    graph = adjoint.capture(function, *inputs, dynamic=True).graph_module.graph
    tensors = [
        node
        for node in graph.find_nodes(op="placeholder")
        if isinstance(node.meta["val"], torch.Tensor)
    ]
    return graph, tensors


def expressions(nodes: list[Any]) -> list[str]:
    return [str(symbols.expression(node.meta["val"])) for node in nodes]


def test_a_size_that_no_saved_tensor_has_is_saved() -> None:
    graph, (x, y) = captured(5, 7)
    all_of_them = expressions(sizes_beside([], list(graph.nodes)))
    assert len(all_of_them) == len(set(all_of_them)) == 2
    (other,) = expressions(sizes_beside([x], list(graph.nodes)))
    assert other == str(symbols.expression(y.meta["val"].shape[0]))
    assert sizes_beside([x, y], list(graph.nodes)) == []


def test_sizes_are_read_off_available_values() -> None:
    graph, (x, y) = captured(5, 7)
    (query,) = sizes_beside([x], list(graph.nodes))
    user = graph.call_function(aten.neg.default, (query,))
    with graph.inserting_after(y):
        known = graph.call_function(aten.sin.default, (y,))
    known.meta = dict(y.meta)
    read_sizes_of([known], graph, {known})
    assert user.args[0].target is aten.sym_size.int  # type: ignore[union-attr]
    assert user.args[0].args == (known, 0)  # type: ignore[union-attr]


def written(a: Tensor, v: Tensor, m: Tensor, x: Tensor, w: Tensor) -> Tensor:
    v[m] = a.sin()
    return torch.cat([x, v], -1) @ w


def test_a_written_input_of_dynamic_size() -> None:
    """Only the sweep of one result finds that the sizes of a and v are equal."""
    torch._dynamo.reset()
    gradients = []
    for function in (written, torch.compile(written, backend="adjoint", fullgraph=True)):
        torch.manual_seed(0)
        a, x, w = leaf(5, 4), leaf(5, 4), leaf(8, 3)
        v, m = torch.zeros(5, 4, dtype=torch.float64), torch.ones(5, dtype=torch.bool)
        for each in (a, v, x):
            torch._dynamo.maybe_mark_dynamic(each, 1)
        gradients.append(torch.autograd.grad(function(a, v, m, x, w).sum(), (a, x, w)))
    torch.testing.assert_close(*gradients)


def raised(x: Tensor, half: float) -> Tensor:
    return (x.abs() + 1) ** (2 * half)


@pytest.mark.skipif(
    TORCH < (2, 13),
    reason="the fake of a power looks at the exponent, of which Dynamo 2.11 can make no guard",
)
def test_higher_derivatives_compute_numbers_from_a_saved_one() -> None:
    """Each order needs another exponent: n, n - 1, n - 2."""
    torch._dynamo.reset()
    found = []
    for function in (raised, torch.compile(raised, backend="adjoint", dynamic=True)):
        torch.manual_seed(0)
        x = leaf(5, 2)
        value = function(x, 1.7)
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
        found.append(value)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("reads", ["the sum", "the mean", "a size"])
def test_a_size_that_only_a_later_segment_saves(order: int, reads: str) -> None:
    """The first segment's derivative needs the number of elements, which depends on data."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        kept = x[y > 0] if reads != "a size" else x[:, y[:, 0] > 0].sum(0)
        near = kept * 2
        reduced = kept.mean() if reads == "the mean" else kept.sum()
        return near, reduced, near.cos().exp()

    def use(results: tuple[Tensor, ...], x: Tensor) -> list[Any]:
        total = sum((each.sin() * place).sum() for place, each in enumerate(results, 1))
        assert isinstance(total, Tensor)
        found = [total, x]
        for _ in range(order):
            found += torch.autograd.grad(found[0], x, create_graph=True)
            found[0] = found[-1].square().sum()
        return found

    x, y = leaf(5, 5), torch.randn(5, 5, dtype=torch.float64)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="adjoint", fullgraph=True)
        found = use(compiled(x, y), x)
    torch.testing.assert_close(found, use(program(x, y), x))
