import math

import pytest
import torch

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
