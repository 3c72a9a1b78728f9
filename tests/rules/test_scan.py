import pytest
import torch

import adjoint
from tests.differentiation import check
from tests.rules.rows import Row, agrees, has_rule

ROWS = [
    Row("cumsum", lambda x: x.cumsum(1).sin(), [(3, 4)], complex=True),
    Row("cumprod", lambda x: x.cumprod(1).sin(), [(3, 5)], complex=True),
    Row("cumprod-of-first", lambda x: x.cumprod(0).sin(), [(4, 2)]),
    Row("cumprod-number", lambda x: x.cumprod(0).sin(), [()]),
    Row("cumprod-dtype", lambda x: x.cumprod(1, dtype=torch.float64), [(2, 5)]),
    Row("cummax", lambda x: torch.cummax(x, 1)[0].sin(), [(3, 4)]),
    Row("cummin", lambda x: torch.cummin(x, 0)[0].sin(), [(3, 4)]),
    Row("logcumsumexp", lambda x: x.logcumsumexp(1), [(3, 4)], complex=True),
    Row("logcumsumexp-number", lambda x: x.logcumsumexp(0).sin(), [()]),
    Row("number", lambda x: x.cumsum(0).sin(), [()]),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


@pytest.mark.parametrize("zeros", [[0], [2], [0, 3], [1, 2, 4], [4]])
def test_a_product_with_zeros(zeros: list[int]) -> None:
    x = torch.randn(2, 5, dtype=torch.float64)
    x[0, zeros] = 0
    check(lambda x: x.cumprod(1).sin(), [x.requires_grad_()], 2)


def test_the_graph_of_a_long_product_is_short() -> None:
    x = torch.rand(1000, dtype=torch.float64)
    graph = adjoint.capture(adjoint.grad(lambda x: x.cumprod(0).sum()), x)
    assert len(graph.graph_module.graph.nodes) < 150


def test_exponentials_out_of_range() -> None:
    x = torch.tensor([-800.0, 0.0, -900.0, 800.0], dtype=torch.float64).requires_grad_()
    check(lambda x: x.logcumsumexp(0), [x], 1)


def test_forward_mode_of_a_sum_of_exponentials() -> None:
    x, v = (torch.randn(3, 4, dtype=torch.float64) for _ in range(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.logcumsumexp(1)

    theirs = torch.func.jvp(function, (x,), (v,))
    torch.testing.assert_close(adjoint.jvp(function, (x,), (v,)), theirs)
    columns = torch.func.jacfwd(function)(x)
    torch.testing.assert_close(adjoint.jacfwd(function)(x), columns)
    torch.testing.assert_close(adjoint.jacrev(function)(x), columns)
