import pytest
import torch

from tests.differentiation import check
from tests.rules.rows import Row, agrees, has_rule, is_right, real

PLACES = torch.tensor([[0, 1, 1], [2, 0, 0]])
ROWS_READ = torch.tensor([0, 2, 0])
MASK = torch.tensor([True, False, True])
X = [(3, 3)]
XS = [(3, 3), (3, 3)]
XI = [(3, 3), (2, 3)]

ROWS = [
    Row("index", lambda x: x[ROWS_READ].sin(), X, complex=True),
    Row("index-two", lambda x: x[ROWS_READ, ROWS_READ].sin(), X),
    Row("index-mask", lambda x: x[MASK].sin(), X),
    Row("index-put", lambda x, s: x.index_put((torch.tensor([2, 0]),), s).sin(), XI),
    Row("index-put-add", lambda x, s: x.index_put((ROWS_READ,), s, accumulate=True).sin(), XS),
    Row("index-put-mask", lambda x, s: x.index_put((MASK,), s).sin(), [(3, 3), (3,)]),
    Row("gather", lambda x: x.gather(0, PLACES).sin(), X, complex=True),
    Row("scatter-add", lambda x, s: x.scatter_add(0, PLACES, s).sin(), XI),
    Row("scatter", lambda x, s: x.scatter(1, torch.tensor([[0, 2, 1], [1, 0, 2]]), s).sin(), XI),
    Row("scatter-number", lambda x: x.scatter(0, PLACES, 2.0).sin(), X),
    Row("index-select", lambda x: x.index_select(1, ROWS_READ).sin(), X),
    Row("index-add", lambda x, s: x.index_add(0, ROWS_READ, s, alpha=2).sin(), XS),
    Row("embedding", lambda w: torch.nn.functional.embedding(PLACES, w, 1).sin(), X),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


def test_sources_may_be_more_than_are_used() -> None:
    some = torch.tensor([[0, 2], [1, 0]])
    is_right(lambda x, s: x.scatter(1, some, s).sin(), real(3, 3), real(2, 3))
    is_right(lambda x, s: x.scatter_add(1, some, s).sin(), real(3, 3), real(2, 3))


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_reductions_at_indices_have_derivatives(reduce: str, include_self: bool) -> None:
    def scattered(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, PLACES, source, reduce, include_self=include_self)

    is_right(scattered, real(3, 3), real(2, 3, seed=1))
    is_right(scattered, real(3, 3), real(4, 4, seed=1))
    if reduce == "sum":
        return

    def indexed(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.index_reduce(0, ROWS_READ, source, reduce, include_self=include_self)

    is_right(indexed, real(3, 3), real(3, 3, seed=1))


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
def test_ties_and_zeros_are_eagers(reduce: str) -> None:
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    source = torch.tensor([0.0, 3.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    index = torch.tensor([1, 1, 2, 2])
    check(lambda x, s: x.scatter_reduce(0, index, s, reduce), [x, source], 1)
    if reduce == "prod":
        is_right(lambda x, s: x.scatter_reduce(0, index, s, reduce), x, source)
