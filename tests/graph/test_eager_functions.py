from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.graph.evaluation import evaluate

aten = torch.ops.aten


def module_of(op: Any, *others: Any) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    operands = [graph.placeholder("y") if each is ... else each for each in others]
    graph.output((graph.call_function(op, (x, *operands)),))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("scatter", "view", "args"),
    [
        (aten.select_scatter.default, aten.select.int, (0, 1)),
        (aten.slice_scatter.default, aten.slice.Tensor, (0, 1, 3)),
        (aten.diagonal_scatter.default, aten.diagonal.default, (1,)),
        (aten.as_strided_scatter.default, aten.as_strided.default, ([2, 2], [4, 1], 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_writing_through_a_view_has_both_derivatives(
    scatter: Any, view: Any, args: tuple[Any, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(4, 4, dtype=dtype, requires_grad=True)
    new = torch.randn_like(view(x, *args)).detach().requires_grad_()
    (result,) = evaluate(module_of(scatter, ..., *args), [x, new])
    expected = x.clone()
    view(expected, *args).copy_(new)
    assert torch.equal(result, expected)
    direction = torch.randn_like(expected)
    for found, wanted in zip(
        torch.autograd.grad(result, [x, new], direction),
        torch.autograd.grad(expected, [x, new], direction),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_a_strided_copy_counts_from_the_start_of_the_value() -> None:
    x = torch.arange(12.0)[4:].requires_grad_()
    (result,) = evaluate(module_of(aten.as_strided_copy.default, [2, 2], [4, 1], 1), [x])
    assert result.tolist() == [[5, 6], [9, 10]]


def test_a_copy_lies_as_what_it_replaces() -> None:
    into, source = torch.randn(3, 2).t(), torch.randn(2, 3, requires_grad=True)
    (result,) = evaluate(module_of(aten.copy.default, ...), [into, source])
    assert result.stride() == into.stride()
    assert torch.equal(result, source)
    (gradient,) = torch.autograd.grad(result.sum(), source)
    assert torch.equal(gradient, torch.ones(2, 3))


def test_bernoulli_draws_as_in_place() -> None:
    torch.manual_seed(0)
    expected = torch.empty(8).bernoulli_(0.3)
    torch.manual_seed(0)
    assert torch.equal(evaluate(module_of(aten.bernoulli.p, 0.3), [torch.empty(8)])[0], expected)


def test_where_extreme_elements_of_a_sparse_product_were_is_known_without_autograd() -> None:
    op = torch.ops.aten._sparse_mm_reduce_impl.default
    sparse = torch.eye(3).to_sparse_csr()
    graph = torch.fx.Graph()
    made = graph.call_function(op, (graph.placeholder("x"), graph.placeholder("y"), "amax"))
    graph.output(made)
    _, places = evaluate(torch.fx.GraphModule({}, graph), [sparse, torch.rand(3, 2)])
    assert places.shape == (3, 2)
    assert not places.requires_grad


def test_what_is_dense_already_is_made_dense() -> None:
    x = torch.eye(3)
    (sparse,) = evaluate(module_of(aten._to_dense.default), [x.to_sparse()])
    (dense,) = evaluate(module_of(aten._to_dense.default), [x])
    assert torch.equal(sparse, x)
    assert torch.equal(dense, x)


@pytest.mark.parametrize(
    "lie",
    [
        lambda x: x[:, :1, :1].expand(3, 4, 2),
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat([x, x], -1)[..., ::2],
        lambda x: torch.cat([x, x[..., :1]], -1)[..., 1:],
    ],
    ids=["expanded", "transposed", "every second", "odd offset"],
)
def test_cotangents_of_real_parts_in_any_layout(lie: Any) -> None:
    def function(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z * 2) + 1

    z = torch.randn(3, 4, dtype=torch.complex128, requires_grad=True)
    cotangent = lie(torch.randn(3, 4, 2, dtype=torch.float64))
    (expected,) = torch.autograd.grad(function(z), z, cotangent)
    for target in ("native", "reference"):
        compiled = torch.compile(function, backend="adjoint", options={"target": target})
        (slope,) = torch.autograd.grad(compiled(z), z, cotangent)
        torch.testing.assert_close(slope, expected)
