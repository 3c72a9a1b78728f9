from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.lower.definitions.indexing import RULES
from tests.lower.definitions.samples import Sample, check_samples, numbers, places
from tests.lowering import check

aten = torch.ops.aten

SAMPLES: list[Sample] = [
    (
        aten.index.Tensor,
        lambda x, i: aten.index.Tensor(x, [i]),
        lambda d: [numbers(6, 4, dtype=d), places(6, 3, 2) - 6],
    ),
    (
        aten.index.Tensor,
        lambda x, i: aten.index.Tensor(x, [None, i]),
        lambda d: [numbers(4, 6, 3, dtype=d), places(6, 5, dtype=torch.int32)],
    ),
    (
        aten.index.Tensor,
        lambda x, i, j: aten.index.Tensor(x, [i, None, j]),
        lambda d: [numbers(4, 6, 4, dtype=d), places(4, 2, 1), places(4, 3)],
    ),
    (
        aten.index.Tensor,
        lambda x, i, j: aten.index.Tensor(x, [None, i, j]),
        lambda d: [numbers(4, 5, 5, dtype=d), places(5, 2, 1), places(5, 3)],
    ),
    (
        aten.index_select.default,
        lambda x, i: aten.index_select(x, 1, i),
        lambda d: [numbers(4, 6, dtype=d), places(6, 9)],
    ),
    (
        aten.gather.default,
        lambda x, i: aten.gather(x, -1, i),
        lambda d: [numbers(4, 6, dtype=d), places(6, 3, 8)],
    ),
    (
        aten.embedding.default,
        lambda w, i: aten.embedding(w, i),
        lambda d: [numbers(7, 3, dtype=d), places(7, 2, 5)],
    ),
    (
        aten.embedding_dense_backward.default,
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 2, False),
        lambda d: [numbers(2, 5, 3, dtype=d), places(7, 2, 5)],
    ),
    (
        aten.index_add.default,
        lambda x, i, s: aten.index_add(x, 1, i, s, alpha=2),
        lambda d: [numbers(3, 4, dtype=d), places(4, 9), numbers(3, 9, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [i], s, True),
        lambda d: [numbers(5, 4, dtype=d), places(5, 9) - 5, numbers(9, 4, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [None, i], s, True),
        lambda d: [numbers(5, 4, dtype=d), places(4, 9), numbers(1, dtype=d, seed=2)],
    ),
    (
        aten.index_put.default,
        lambda x, i, s: aten.index_put(x, [i], s, False) + 1,
        lambda d: [numbers(5, 4, dtype=d), torch.tensor([3, 0]), numbers(2, 4, dtype=d, seed=2)],
    ),
    (
        aten.scatter_add.default,
        lambda x, i, s: aten.scatter_add(x, 1, i, s),
        lambda d: [numbers(5, 4, dtype=d), places(4, 3, 9), numbers(4, 10, dtype=d, seed=2)],
    ),
]


@pytest.mark.parametrize("place", range(len(SAMPLES)))
def test_elements_by_index(place: int) -> None:
    check_samples(SAMPLES[place])


@pytest.mark.parametrize(
    ("call", "name", "dim"),
    [
        (lambda x, i: x[i], "index", 0),
        (lambda x, i: x[:, i], "index", 1),
        (lambda x, i: x.index_select(0, i), "index_select", 0),
        (lambda x, i: torch.nn.functional.embedding(i, x), "embedding", 0),
        (lambda x, i: x.gather(1, i[:, None]), "gather", 1),
        (lambda x, i: x.scatter_add(1, i[:, None], x), "scatter_add", 1),
        (lambda x, i: x.index_add(1, i, x), "index_add", 1),
        (lambda x, i: x[0].index_add(0, i, x[0]), "index_add", 0),
        (lambda x, i: x.index_put((i,), x, accumulate=True), "index_put", 0),
        (lambda x, i: torch.nn.functional.nll_loss(x, i), "nll_loss_forward", 1),
    ],
)
@pytest.mark.parametrize("wrong", [5, -4])
def test_an_index_out_of_bounds_raises_what_eager_raises(
    call: Any, name: str, dim: int, wrong: int
) -> None:
    x, good, bad = torch.ones(3, 3), torch.tensor([0, 2, 1]), torch.tensor([0, wrong, 1])
    program = check(lambda x, i: call(x, i) * 2, x, good)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        call(x, bad)
    message = rf"index {wrong} is out of bounds for dimension {dim} with size 3 \(aten.{name}\)"
    with pytest.raises((IndexError, RuntimeError), match=message) as raised:
        program([x, bad])
    assert raised.type is eager.type
    torch.testing.assert_close(program([x, good]), call(x, good) * 2)


def test_a_negative_index_where_eager_takes_none_raises() -> None:
    x, good, bad = torch.arange(3.0), torch.tensor([0, 2, 1]), torch.tensor([0, -1, 1])
    program = check(lambda x, i: x.index_select(0, i) * 2, x, good)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        program([x, bad])


def test_each_rule_has_a_sample() -> None:
    assert {row[0] for row in SAMPLES} == set(RULES)
