"""Random programs over layouts and dtypes mean what they mean in eager, at orders 0 to 2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comparing_layouts import compare
from tests.random_layouts import LAYOUTS, program

# Eager's advice about some of what is drawn.
pytestmark = pytest.mark.filterwarnings("ignore")

# Seeds of one test.  Of each set of tests so many run by default.
TOGETHER = 20
BY_DEFAULT = 1


def seeds(count: int) -> list[Any]:
    return [
        pytest.param(
            range(first, first + TOGETHER),
            id=f"from {first}",
            marks=[] if first < BY_DEFAULT * TOGETHER else [pytest.mark.slow],
        )
        for first in range(0, count, TOGETHER)
    ]


@pytest.mark.parametrize("some", seeds(5000))
def test_native_programs(some: range) -> None:
    for seed in some:
        made, found = compare(seed)
        assert not found, f"{made}\n{found}"


@pytest.mark.parametrize("some", seeds(1000))
def test_op_by_op(some: range) -> None:
    for seed in some:
        made, found = compare(seed + 10_000, "reference")
        assert not found, f"{made}\n{found}"


def test_programs_are_of_every_kind() -> None:
    made = [program(seed) for seed in range(200)]
    assert {layout for each in made for layout in each.layouts} == LAYOUTS.keys()
    assert len({x.dtype for each in made for x in each.inputs}) == 5
    assert program(3).text == program(3).text
    assert sum(len(each.lines) for each in made) > 400
