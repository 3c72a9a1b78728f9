from __future__ import annotations

import pytest
import torch

from adjoint.emit.choices import choice_in, for_all_turns
from adjoint.emit.nvptx import emit_module
from adjoint.loops.expressions import Counter, Expression, Guarded, Load, constant, integer
from adjoint.loops.show import show_expression
from adjoint.loops.statements import Loop, Store
from adjoint.lower.planning import lower
from adjoint.runtime.gpu.assembly import assemble
from tests.lowering import graph_of, launches

COLUMN, TURN = Counter("column"), Counter("i")


def loop(*values: Expression) -> Loop:
    stores = tuple(Store("out", TURN, value) for value in values)
    return Loop("i", integer(0), integer(8), stores)


def place() -> Expression:
    return COLUMN * integer(8) + TURN


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (place() < 768, "((column * 8) < 768)"),
        (place() >= 16, "((column * 8) >= 16)"),
        (COLUMN < 5, "(column < 5)"),
        (place() < 20, None),
        (COLUMN * integer(4) + TURN < 768, None),
        (place() > 16, None),
        (TURN < 4, None),
    ],
)
def test_what_all_turns_say_alike(condition: Expression, expected: str | None) -> None:
    found = for_all_turns(condition, loop())
    assert (None if found is None else show_expression(found)) == expected


@pytest.mark.parametrize("bound", range(0, 64, 8))
def test_they_do(bound: int) -> None:
    for column in range(8):
        for order in (int.__lt__, int.__ge__):
            alike = {order(column * 8 + turn, bound) for turn in range(8)}
            assert alike == {order(column * 8, bound)}


def test_the_first_that_is_not_made_is_found() -> None:
    x = Load("x", place(), torch.float32)
    inner = Guarded(place() < 16, x, constant(1.0, torch.float32))
    outer = Guarded(place() < 8, constant(2.0, torch.float32), inner)
    whole = loop(outer)
    first = choice_in(whole, {})
    assert first is not None
    assert first[0] is outer
    assert choice_in(whole, {id(outer): outer.value}) is None
    second = choice_in(whole, {id(outer): inner})
    assert second is not None
    assert second[0] is inner
    assert choice_in(whole, {id(outer): inner, id(inner): x}) is None


def read(parts: list[int]) -> str:
    """A kernel that puts rows together, and adds them up."""
    given = [torch.empty(4096, part, dtype=torch.bfloat16) for part in parts]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        whole = torch.cat(tensors, 1)
        return [whole, whole.float().sum(0)]

    first, *_ = launches(lower(graph_of(function, given), grids=True))
    return assemble(emit_module([first.kernel]), (9, 0)).decode()


def test_neighbours_from_one_of_several_tensors_are_read_as_one() -> None:
    text = read([768, 512, 256])
    assert text.count("ld.global.nc.v4") == text.count("ld.global") == 3


def test_not_where_a_thread_reads_from_two() -> None:
    text = read([762, 517, 257])
    assert "ld.global.nc.v4" not in text
