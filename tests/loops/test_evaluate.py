from __future__ import annotations

import pytest
import torch

from adjoint.loops.evaluate import evaluate
from adjoint.loops.expressions import (
    Cast,
    Counter,
    Extent,
    Guarded,
    Load,
    Name,
    apply,
    constant,
    integer,
)
from adjoint.loops.statements import Accumulator, Assign, Mapping, Merge, Statement, Store, Update
from tests.kernels import HERE, N, at, kernel, meaning, over, pointwise, reversing

F16, F32, I64 = torch.float16, torch.float32, torch.int64


def test_a_sum_of_each_row() -> None:
    columns, j = Extent("m"), Counter("j")
    x = Load("x", HERE * columns + j, F32)
    body = over(
        N,
        Accumulator("sum", constant(0, F32)),
        over(columns, Update("sum", "add", x), counter="j", mapping=Mapping.VECTOR),
        Store("out", HERE, Name("sum", F32)),
        mapping=Mapping.PARALLEL,
    )
    made = kernel([body], {"x": F32}, {"out": F32}, ["n", "m"])
    x_, out = torch.arange(6.0), torch.zeros(2)
    evaluate(made, {"x": x_, "out": out}, {"n": 2, "m": 3})
    assert out.tolist() == [3.0, 12.0]


def test_a_scatter_meets_the_same_place_twice() -> None:
    made = kernel(
        [over(N, Merge("out", at("place", I64), "add", at("x", F32)))],
        {"x": F32, "place": I64},
        {"out": F32},
    )
    buffers = {"x": torch.ones(3), "place": torch.tensor([1, 1, 0]), "out": torch.zeros(2)}
    assert meaning(made, buffers, {"n": 3})["out"].tolist() == [1.0, 2.0]


def test_a_name_is_that_of_its_own_block() -> None:
    inner = over(integer(1), Assign("a", constant(2, F32)), counter="j")
    body = over(N, inner, Assign("a", at("x", F32)), Store("out", HERE, Name("a", F32)))
    made = kernel([body], {"x": F32}, {"out": F32})
    buffers = {"x": torch.tensor([5.0, 6.0]), "out": torch.zeros(2)}
    assert meaning(made, buffers, {"n": 2})["out"].tolist() == [5.0, 6.0]


def test_an_accumulator_is_the_one_around_all_loops() -> None:
    update = Update("sum", "add", constant(1, I64))
    inner = over(integer(3), update, counter="j")
    made = kernel(
        [
            Accumulator("sum", constant(0, I64)),
            over(N, inner, update),
            Store("out", integer(0), Name("sum", I64)),
        ],
        {},
        {"out": I64},
    )
    buffers = {"out": torch.zeros(1, dtype=I64)}
    assert meaning(made, buffers, {"n": 5})["out"].tolist() == [20]


def test_half_types_are_rounded_after_each_operator() -> None:
    x = at("x", F16)
    made = pointwise((x + 1) - 1, {"x": F16})
    buffers = {"x": torch.tensor([1e-4, 0.5], dtype=F16), "out": torch.zeros(2, dtype=F16)}
    assert meaning(made, buffers, {"n": 2})["out"].tolist() == [0.0, 0.5]


def test_integers_wrap() -> None:
    x = at("x", torch.int8)
    made = pointwise(x + 100, {"x": torch.int8})
    buffers = {"x": torch.tensor([100], dtype=torch.int8), "out": torch.zeros(1, dtype=torch.int8)}
    assert meaning(made, buffers, {"n": 1})["out"].tolist() == [-56]


def test_what_is_guarded_is_not_read() -> None:
    value = Guarded(HERE < 1, Load("x", HERE, F32), constant(9, F32))
    made = pointwise(value, {"x": F32})
    buffers = {"x": torch.tensor([4.0]), "out": torch.zeros(3)}
    assert meaning(made, buffers, {"n": 3})["out"].tolist() == [4.0, 9.0, 9.0]


def test_a_cast_and_a_function() -> None:
    made = pointwise(Cast(apply("exp", at("x", F32)), I64), {"x": F32})
    buffers = {"x": torch.tensor([0.0, 1.0, 2.0]), "out": torch.zeros(3, dtype=I64)}
    assert meaning(made, buffers, {"n": 3})["out"].tolist() == [1, 2, 7]


def test_what_a_team_stores_for_itself() -> None:
    buffers = {"x": torch.arange(8.0), "out": torch.zeros(8)}
    assert meaning(reversing(4), buffers, {"n": 2})["out"].tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


def test_memory_of_a_team_has_nothing_at_first() -> None:
    """What another team stored is not there."""
    buffers = {"x": torch.arange(8.0), "out": torch.zeros(8)}
    with pytest.raises(AssertionError, match="nothing was stored in tile"):
        evaluate(reversing(4, stored=3), buffers, {"n": 2})
    with pytest.raises(AssertionError, match="tile has 4 elements, not one at 4"):
        evaluate(reversing(4, stored=5), buffers, {"n": 1})


@pytest.mark.parametrize(
    "statement",
    [
        Store("out", HERE, Load("x", HERE - 1, F32)),
        Store("out", HERE - 1, at("x", F32)),
        Merge("out", HERE - 1, "add", at("x", F32)),
    ],
)
def test_there_is_nothing_before_a_buffer(statement: Statement) -> None:
    made = kernel([over(integer(3), statement)], {"x": F32}, {"out": F32}, ())
    with pytest.raises(AssertionError, match="no element at -1"):
        evaluate(made, {"x": torch.ones(3), "out": torch.zeros(3)}, {})
