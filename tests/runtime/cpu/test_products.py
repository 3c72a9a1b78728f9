"""Matrix products by the BLAS, without going through torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.loops.plan import Product
from tests.lowering import calls, program_of


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def products(x: Tensor, y: Tensor) -> list[Tensor]:
    """Factors in both orders of strides, at offsets, of inputs, kernels and views."""
    z = x.sin() @ y
    return [z, x[1:] @ y, x @ y.t()[:, 5:].t().t(), y.t() @ x.t(), (z[:, 1:].t() @ x).exp()]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_products_of_any_matrices(dtype: torch.dtype, close: float) -> None:
    x, y = random(9, 12, dtype=dtype), random(12, 12, dtype=dtype)
    for inputs in (
        [x, y],
        [x.t().contiguous().t(), y],
        [x[:, ::1], y.t()],
        [random(18, 12)[::2], y],
    ):
        given = [each.to(dtype) for each in inputs]
        program = program_of(products, given)
        found = program(list(given))
        torch.testing.assert_close(found, products(*given), rtol=close, atol=close)
        assert sum(isinstance(step, Product) for step in program.plan.steps) >= 4


def test_no_python_between_products_and_kernels() -> None:
    def network(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        return [((x @ w).tanh() @ v).tanh() @ w.t()]

    inputs = [random(7, 8), random(8, 9), random(9, 9)]
    program = program_of(network, inputs)
    assert calls(program.plan) == []
    assert len(program.runs) == 1
    torch.testing.assert_close(program(list(inputs)), network(*inputs))


def test_numbers_below_the_normal_range_are_multiplied_as_in_torch() -> None:
    tiny = torch.finfo(torch.float32).tiny
    x = torch.full((8, 8), tiny)
    w = torch.full((8, 8), 0.25)
    (found,) = program_of(lambda x, w: [(x @ w) * 0.5], [x, w])([x, w])
    assert torch.equal(found, (x @ w) * 0.5)
    assert found.all()


@pytest.mark.parametrize(
    "shape", [(0, 5, 6), (5, 0, 6), (5, 6, 0), (1, 5, 6), (5, 6, 1), (5, 1, 6)]
)
def test_sizes_that_are_none_or_one_are_arguments_too(shape: tuple[int, int, int]) -> None:
    compiled = torch.compile(lambda x, y: (x.sin() @ y).cos(), backend="adjoint", dynamic=True)
    for m, k, n in ((7, 8, 9), shape, (9, 9, 8)):
        x, y = random(m, k), random(k, n)
        torch.testing.assert_close(compiled(x, y), (x.sin() @ y).cos())
