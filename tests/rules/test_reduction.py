import math
from collections.abc import Callable

import pytest
import torch
import torch._dynamo

from tests.differentiation import check
from tests.rules.rows import Row, agrees, has_rule

X = [(3, 4)]

ROWS = [
    Row("sum", lambda x: x.sum().sin(), X, complex=True),
    Row("sum-dims", lambda x: x.sum((0, -1), keepdim=True).sin(), X),
    Row("sum-dim", lambda x: x.sum(-1).sin(), X),
    Row("sum-number", lambda x: x.sum().sin(), [()]),
    Row("mean", lambda x: x.mean().sin(), X, complex=True),
    Row("mean-dim", lambda x: x.mean(0).sin(), X),
    Row("var", lambda x: x.var(), X),
    Row("var-dim", lambda x: x.var(1).sin(), X),
    Row("var-dims", lambda x: x.var((0, -1), correction=0.5, keepdim=True), X),
    Row("std", lambda x: x.std(), X),
    Row("std-dim", lambda x: x.std(0, correction=0), X),
    Row("var-mean", lambda x: torch.var_mean(x, 0, correction=2), X),
    Row("mean-of-var-mean", lambda x: torch.var_mean(x, 0)[1].sin(), X),
    Row("std-mean", lambda x: torch.std_mean(x, 1, keepdim=True), X),
    Row("std-of-std-mean", lambda x: torch.std_mean(x)[0], X),
    Row("amax", lambda x: x.amax(1), X),
    Row("amin", lambda x: x.amin((0, 1), keepdim=True), X),
    Row("max-dim", lambda x: x.max(1)[0].sin(), X),
    Row("min-dim", lambda x: x.min(0, keepdim=True)[0].sin(), X),
    Row("median", lambda x: x.median(1)[0].sin(), X),
    Row("kthvalue", lambda x: x.kthvalue(2, 1)[0].sin(), X),
    Row("topk", lambda x: x.topk(2, 1)[0].sin(), X),
    Row("sort", lambda x: x.sort(1, descending=True)[0].sin(), X),
    Row("logsumexp", lambda x: x.logsumexp(1), X, complex=True),
    Row("softmax", lambda x: x.softmax(1), X),
    Row("log-softmax", lambda x: x.log_softmax(0), X),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


TIES = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]], dtype=torch.float64, requires_grad=True)
INFINITE = torch.tensor(
    [[-math.inf, -math.inf], [1.0, -math.inf]], dtype=torch.float64, requires_grad=True
)


def test_ties_are_eagers() -> None:
    check(lambda x: x.amax(1), [TIES], 1)
    check(lambda x: x.amin(0), [TIES], 1)
    check(lambda x: x.max(1)[0], [TIES], 1)
    check(lambda x: x.min(1)[0], [TIES], 1)


def test_infinities_are_eagers() -> None:
    check(lambda x: x.logsumexp(1), [INFINITE], 1)
    check(lambda x: x.softmax(1), [INFINITE], 1)


OF_TOO_FEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var": lambda x: x.var(0),
    "var without correction": lambda x: x.var(0, correction=0),
    "var of all": lambda x: x.var(),
    "std": lambda x: x.std(0),
    "var_mean": lambda x: torch.var_mean(x, 0)[0],
    "std_mean": lambda x: torch.std_mean(x, 0)[0] + torch.std_mean(x, 0)[1],
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("sizes", [(3, 1, 0), (1, 3)], ids=str)
@pytest.mark.parametrize("name", OF_TOO_FEW)
def test_variances_of_too_few_are_eagers(name: str, sizes: tuple[int, ...]) -> None:
    function = OF_TOO_FEW[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint", dynamic=True)
    for size in sizes:
        x = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
        expected, found = (
            torch.autograd.grad(each(x).sum(), x, create_graph=True)[0]
            for each in (function, compiled)
        )
        torch.testing.assert_close(found, expected, equal_nan=True)
        if size == 3:
            second = [torch.autograd.grad(each.sin().sum(), x)[0] for each in (found, expected)]
            torch.testing.assert_close(*second)
