from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adjoint.loops.expressions import Apply, Constant, Expression, Guarded, apply, integer
from adjoint.loops.expressions import walk as walk_expression
from adjoint.loops.statements import Accumulator, Kernel, Loop, Store, Update, expressions, walk
from adjoint.lower import index_sets
from adjoint.lower.definitions import pieces
from adjoint.lower.index_sets import split_index_sets
from tests.kernels import HERE, N, at, kernel, meaning, over, same
from tests.lowering import check, launches, loop_program_of

F32 = torch.float32


def conditions(made: Kernel) -> list[Expression]:
    parts = [
        part
        for statement in walk(made.body)
        for each in expressions(statement)
        for part in walk_expression(each)
    ]
    operators = ("lt", "le", "gt", "ge", "eq", "ne")
    return [each for each in parts if isinstance(each, Apply) and each.operator in operators]


def loops(made: Kernel) -> list[tuple[int, int]]:
    found = [each for each in walk(made.body) if isinstance(each, Loop)]
    return [
        (int(each.start.value), int(each.stop.value))
        for each in found
        if isinstance(each.start, Constant) and isinstance(each.stop, Constant)
    ]


def storing(value: Expression, count: int = 12) -> Kernel:
    return kernel([over(integer(count), Store("out", HERE, value))], {"x": F32}, {"out": F32}, ())


X = at("x", F32)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (HERE < 5, [(0, 5), (5, 12)]),
        (HERE >= 5, [(0, 5), (5, 12)]),
        (HERE <= 5, [(0, 6), (6, 12)]),
        (HERE > 5, [(0, 6), (6, 12)]),
        (HERE.equals(5), [(0, 5), (5, 6), (6, 12)]),
        (HERE.differs(11), [(0, 11), (11, 12)]),
        (HERE + 3 < 5, [(0, 2), (2, 12)]),
        (HERE - 3 < 5, [(0, 8), (8, 12)]),
        (HERE < 12, [(0, 12)]),
        (HERE >= 0, [(0, 12)]),
    ],
)
def test_where_a_condition_changes(condition: Expression, expected: Any) -> None:
    before = storing(Guarded(condition, X * 2.0, X + 1.0))
    after = split_index_sets(before)
    given = {"x": torch.randn(12), "out": torch.zeros(12)}
    assert same(meaning(before, given, {})["out"], meaning(after, given, {})["out"])
    if len(expected) > 1:
        assert loops(after) == expected
        assert conditions(after) == []


@pytest.mark.parametrize("condition", [HERE + 1 >= 0, HERE >= 0, HERE + 1 < 5, HERE > 5])
@pytest.mark.parametrize("count", [0, 1, 3, 12])
def test_a_loop_of_any_length_starts_where_it_did(condition: Expression, count: int) -> None:
    value = Guarded(condition, X * 2.0, X + 1.0)
    before = kernel([over(N, Store("out", HERE, value))], {"x": F32}, {"out": F32})
    given = {"x": torch.randn(count), "out": torch.zeros(count)}
    expected = meaning(before, given, {"n": count})["out"]
    assert same(expected, meaning(split_index_sets(before), given, {"n": count})["out"])


def test_a_condition_on_something_else_stays() -> None:
    before = storing(Guarded(X < 0.5, X * 2.0, X))
    assert split_index_sets(before) is before


def test_loops_that_accumulators_refer_to_stay_whole() -> None:
    start = over(integer(12), Accumulator("m", Constant(0.0, F32), per=(("i", 12),)))
    update = over(integer(12), Update("m", "add", Guarded(HERE < 5, X, X * 2.0)))
    before = kernel([start, update], {"x": F32}, {}, ())
    assert split_index_sets(before) is before


def test_code_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    value: Expression = X
    for count in range(1, 11):
        value = Guarded(apply("lt", HERE, integer(count)), value * 2.0, value + 1.0)
    assert len(loops(split_index_sets(storing(value)))) == 11
    monkeypatch.setattr(index_sets, "MAX_PARTS", 8)
    assert len(loops(split_index_sets(storing(value)))) == 1
    monkeypatch.setattr(index_sets, "MAX_PARTS", 64)
    monkeypatch.setattr(index_sets, "MAX_EXPRESSIONS", 8)
    monkeypatch.setattr(index_sets, "MAX_GROWTH", 1)
    assert len(loops(split_index_sets(storing(value)))) == 1


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.cat([x * 2, x.sin(), x[:, :1], x[:, 1:3] - 1], 1),
    lambda x: torch.cat([x * 2, x.sin()], 0).cos(),
    lambda x: torch.cat([x * 2, x.sin()], 1).sum(1),
    lambda x: torch.cat([x * 2, x.sin()], 1).cumsum(1).softmax(1),
    lambda x: torch.stack([x, x.sin(), x.cos()], -1).exp(),
    lambda x: F.pad(x.sin(), (2, 1, 3, 1), value=0.5) * 2,
    lambda x: torch.cat([x[:, k : k + 1] * k for k in range(4)] * 4, 1).sin(),
    lambda x: x.sin().tril(1) + x.triu(-1),
    lambda x: torch.roll(x * 2, 1, 1) + 1,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("rows", [1, 5])
def test_programs(program: Callable[[Tensor], Tensor], rows: int) -> None:
    x = torch.randn(rows, 7, dtype=torch.float64)
    check(program, x)
    torch.testing.assert_close(loop_program_of(program, [x])([x]), program(x))


def test_parts_of_a_concatenation_have_loops_of_their_own() -> None:
    x = torch.randn(4, 9)
    plan = check(lambda x: torch.cat([x * 2, x + 1, x * x], 1), x).plan
    (launch,) = launches(plan)
    assert conditions(launch.kernel) == []
    assert [each for each in loops(launch.kernel) if each[1] > 1] == [(0, 9), (9, 18), (18, 27)]


def test_many_parts_are_still_a_kernel() -> None:
    parts = pieces.MAX_CONCATENATED
    x = torch.randn(4, parts)
    program = check(lambda x: torch.cat([each * 2 for each in x.split(1, 1)], 1).sin(), x)
    assert len(launches(program.plan)) == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_parts_of_rows_that_threads_share(threads: int) -> None:
    """A thread's share may have no row of some part."""

    def program(x: Tensor) -> Tensor:
        return torch.cat([x * 2, x + 1, x[:5], x.sin()], 0)

    x = torch.randn(3000, 40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(program, x)
    finally:
        torch.set_num_threads(before)


def test_names_inside_of_split_rows() -> None:
    """Each part of the rows has accumulators of its own."""

    def program(x: Tensor) -> Tensor:
        rows = torch.cat([x.sin(), x[:2] * 2], 0)
        return rows.logsumexp(1) + (rows * rows).sum(1) - rows[:, 0]

    x = torch.randn(4, 9, dtype=torch.float64)
    check(program, x)
    torch.testing.assert_close(loop_program_of(program, [x])([x]), program(x))
