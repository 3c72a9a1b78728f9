from __future__ import annotations

import pytest
import torch

from adjoint.emit.nvptx import emit_module
from adjoint.emit.unswitching import hoisted, uniform_guard
from adjoint.loops.expressions import Counter, Expression, Guarded, Load, constant, integer
from adjoint.loops.show import show_expression
from adjoint.loops.statements import Loop, Store
from adjoint.runtime.gpu.assembly import assemble
from tests.lowering import GRID, HOPPER, graph_of, launches, lower

COLUMN, TRIP = Counter("column"), Counter("i")


def loop(*values: Expression) -> Loop:
    stores = tuple(Store("out", TRIP, value) for value in values)
    return Loop("i", integer(0), integer(8), stores)


def place() -> Expression:
    return COLUMN * integer(8) + TRIP


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (place() < 768, "((column * 8) < 768)"),
        (place() >= 16, "((column * 8) >= 16)"),
        (COLUMN < 5, "(column < 5)"),
        (place() < 20, None),
        (COLUMN * integer(4) + TRIP < 768, None),
        (place() > 16, None),
        (TRIP < 4, None),
    ],
)
def test_a_condition_that_all_iterations_share(condition: Expression, expected: str | None) -> None:
    found = hoisted(condition, loop())
    assert (None if found is None else show_expression(found)) == expected


@pytest.mark.parametrize("bound", range(0, 64, 8))
def test_the_hoisted_condition_holds_for_all_iterations_or_none(bound: int) -> None:
    for condition in (place() < bound, place() >= bound):
        made = hoisted(condition, loop())
        assert made is not None
        inside, outside = show_expression(condition), show_expression(made)
        for column in range(8):
            holds = {eval(inside, {"column": column, "i": i}) for i in range(8)}
            assert holds == {eval(outside, {"column": column})}


def test_guards_are_found_one_after_another() -> None:
    x = Load("x", place(), torch.float32)
    inner = Guarded(place() < 16, x, constant(1.0, torch.float32))
    outer = Guarded(place() < 8, constant(2.0, torch.float32), inner)
    whole = loop(outer)
    first = uniform_guard(whole, {})
    assert first is not None
    assert first[0] is outer
    assert uniform_guard(whole, {id(outer): outer.value}) is None
    second = uniform_guard(whole, {id(outer): inner})
    assert second is not None
    assert second[0] is inner
    assert uniform_guard(whole, {id(outer): inner, id(inner): x}) is None


def read(parts: list[int]) -> str:
    """The assembly of a concatenation of columns, with sums over rows."""
    given = [torch.empty(4096, part, dtype=torch.bfloat16) for part in parts]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        whole = torch.cat(tensors, 1)
        return [whole, whole.float().sum(0)]

    first, *_ = launches(lower(graph_of(function, given), GRID))
    return assemble(emit_module([first.kernel], GRID), HOPPER).decode()


def test_adjacent_elements_of_one_part_are_loaded_as_a_vector() -> None:
    text = read([768, 512, 256])
    assert text.count("ld.global.nc.v4") == text.count("ld.global") == 3


def test_not_where_a_thread_reads_from_two_parts() -> None:
    text = read([762, 517, 257])
    assert "ld.global.nc.v4" not in text
