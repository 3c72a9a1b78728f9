from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjoint.loops.expressions import Name
from adjoint.lower.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    leading,
    linear,
    of_axis,
    refined,
    reshaped,
    row_major,
    unravelled,
)

AXES = [Axis("i", 2), Axis("j", 3), Axis("k", 4), Axis("m", 1)]


def value(index: Index, axes: Mapping[Axis, int]) -> int:
    """What an index is, at one place."""
    total = int(index.constant)
    for atom, coefficient in index.terms:
        match atom:
            case Axis():
                number = axes[atom]
            case Quotient(of, by):
                number = value(of, axes) // int(by)
            case Remainder(of, by):
                number = value(of, axes) % int(by)
            case _:
                raise AssertionError("no index is read from memory here")
        total += int(coefficient) * number
    return total


def places(axes: Sequence[Axis]) -> list[dict[Axis, int]]:
    ranges = [range(int(axis.extent)) for axis in axes]
    return [dict(zip(axes, each, strict=True)) for each in itertools.product(*ranges)]


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3) -> tuple[Index, list[int]]:
    """An index, and its values at all places, found without any simplification."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            axis = draw(st.sampled_from(AXES))
            return of_axis(axis), [place[axis] for place in places(AXES)]
        number = draw(st.integers(-3, 7))
        return Index((), number), [number] * len(places(AXES))
    left, one = draw(formulas(depth=depth - 1))
    match draw(st.sampled_from(["add", "mul", "div", "mod", "less"])):
        case "add":
            right, other = draw(formulas(depth=depth - 1))
            return left + right, [a + b for a, b in zip(one, other, strict=True)]
        case "mul":
            by = draw(st.integers(-2, 5))
            return left * by, [a * by for a in one]
        case "div":
            by = draw(st.integers(1, 6))
            return left // by, [a // by for a in one]
        case "mod":
            by = draw(st.integers(1, 6))
            return left % by, [a % by for a in one]
        case _:
            number = draw(st.integers(-5, 5))
            return left + number, [a + number for a in one]


@settings(max_examples=200, deadline=None)
@given(formulas())
def test_simplified_arithmetic_is_arithmetic(formula: tuple[Index, list[int]]) -> None:
    index, expected = formula
    assert [value(index, place) for place in places(AXES)] == expected


@settings(max_examples=100, deadline=None)
@given(formulas(), st.data())
def test_other_indices_in_place_of_axes(
    formula: tuple[Index, list[int]], data: st.DataObject
) -> None:
    index, _ = formula
    merged = Axis("all", 24)
    parts = dict(zip(AXES[:3], unravelled(of_axis(merged), [2, 3, 4]), strict=True))
    moved = index.replaced(parts)
    for number in range(24):
        i, j, k = number // 12, number // 4 % 3, number % 4
        place = dict(zip(AXES, (i, j, k, 0), strict=True))
        assert value(moved, {**place, merged: number}) == value(index, place)


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=0, max_size=4)


@settings(max_examples=150, deadline=None)
@given(SHAPES, st.randoms(use_true_random=False))
def test_a_reshape_keeps_the_order_of_elements(shape: list[int], random: object) -> None:
    for into in factorisations(math.prod(shape)):
        axes = [Axis(f"a{place}", size) for place, size in enumerate(shape)]
        index = reshaped([of_axis(axis) for axis in axes], shape, into)
        numbers = torch.arange(math.prod(shape)).reshape(into)
        for number, place in enumerate(places(axes)):
            at = tuple(value(each, place) for each in index)
            assert int(numbers[at]) == number


def factorisations(count: int) -> list[list[int]]:
    """A few shapes of so many elements."""
    found = [[count], [1, count], [count, 1]]
    for size in range(2, count):
        if count % size == 0:
            found.append([size, count // size])
            found += [[size, *rest] for rest in factorisations(count // size)[:1] if size < 4]
            found.append([size, 1, count // size])
    return found[:12]


def test_nothing_is_divided_that_need_not_be() -> None:
    axes = [Axis("i", 5), Axis("j", 6)]
    index = reshaped([of_axis(axis) for axis in axes], [5, 6], [5, 2, 3])
    assert index[0] == of_axis(axes[0])
    assert set(index[1].axes()) == {axes[1]}
    back = reshaped(index, [5, 2, 3], [30])
    assert back == (linear([of_axis(axis) for axis in axes], [6, 1]),)


def test_a_quotient_and_its_remainder_are_one_again() -> None:
    i = of_axis(Axis("i", 12))
    assert (i // 5) * 5 + i % 5 == i
    assert (i // 5) * 10 + (i % 5) * 2 == i * 2


def test_bounds_are_used() -> None:
    i, j = Axis("i", 4), Axis("j", 3)
    run = of_axis(i) * 3 + of_axis(j)
    assert run // 3 == of_axis(i)
    assert run % 3 == of_axis(j)
    assert (run % 12) == run


def test_an_index_read_from_memory_is_not_bounded() -> None:
    read = Index(((Gathered(Name("x", torch.int64), 5), 1),))
    assert read % 5 != read
    assert not read.is_within(1 << 40)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([2, 3], [6], (2, 3)),
        ([6], [2, 3], (2, 3)),
        ([4, 3], [2, 6], (2, 2, 3)),
        ([2, 3], [3, 2], None),
        ([1, 5, 1], [5], (5,)),
        ([], [1, 1], ()),
        ([2, 3], [7], None),
        ([4], [4, 2], None),
    ],
)
def test_refined(one: list[int], other: list[int], expected: tuple[int, ...] | None) -> None:
    assert refined(one, other) == expected


@settings(max_examples=100, deadline=None)
@given(SHAPES, SHAPES)
def test_what_is_refined_can_be_merged_to_both(one: list[int], other: list[int]) -> None:
    finer = refined(one, other)
    if finer is None:
        return
    assert math.prod(finer) == math.prod(one) == math.prod(other)
    ends = {math.prod(finer[place:]) for place in range(len(finer) + 1)}
    for shape in (one, other):
        assert {math.prod(shape[place:]) for place in range(len(shape) + 1)} <= ends


def test_row_major() -> None:
    assert row_major([2, 3, 4]) == (12, 4, 1)
    assert row_major([]) == ()


def test_which_dimensions_come_first() -> None:
    assert leading((2, 3, 5), 6) == 2
    assert leading((2, 3, 5), 2) == 1
    assert leading((2, 3, 5), 4) is None
