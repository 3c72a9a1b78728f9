from __future__ import annotations

import torch
from torch import Tensor

from adjoint.memory.values import SavedValue, explained, recomputation
from adjoint.rules.costs import Cost
from tests.parity import leaf
from tests.partition.test_split import recorded, saved_nodes


def program(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).exp() @ w.t()).exp()


def test_recomputation_starts_from_other_saved_values() -> None:
    made = recorded(program, leaf(4, 8), leaf(8, 16), wrt=(0, 1))
    x, _, first, last = saved_nodes(made)
    alone = recomputation(last, {last})
    together = recomputation(last, {first, last})
    product, function = 2 * 4 * 8 * 16, 8 * 4
    assert together.flops == product + function * 8
    assert alone.flops - together.flops == product + function * 16
    assert recomputation(x, {x}).flops == 0


def test_the_largest_comes_first() -> None:
    values = explained(recorded(program, leaf(4, 8), leaf(8, 16), wrt=(0, 1)))
    assert [each.bytes for each in values] == sorted((each.bytes for each in values), reverse=True)
    assert {each.dtype for each in values} == {torch.float64}
    assert [each.described for each in values if each.op == "aten.exp.default"] == [
        "f64[4, 16]",
        "f64[4, 8]",
    ]


def test_numbers() -> None:
    made = recorded(lambda x: x.sum((0, 1)).expand(5), leaf(3, 4), dynamic=True)
    assert {each.described for each in explained(made)} <= {"a number", "f64[3, 4]"}
    number = SavedValue("s0", 8, (), None, "", None, (), "", Cost(), False)
    assert number.described == "a number"
