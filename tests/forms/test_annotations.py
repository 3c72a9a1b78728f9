from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
import torch

from adjoint.forms.annotations import check_of, checks_of_fields


@dataclass(frozen=True)
class Point:
    x: int


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, [1, -1], [True, 1.0, "1", None]),
        (bool, [True], [1, 0]),
        (float, [1.0], [1]),
        (str | None, ["a", None], [1]),
        (tuple[int, ...], [(), (1, 2)], [[1], (1, "a"), 1]),
        (tuple[int, str], [(1, "a")], [(1,), ("a", 1), (1, "a", 2)]),
        (frozenset[int], [frozenset({1})], [{1}, frozenset({"a"})]),
        (list[int], [[], [1]], [(1,), ["a"]]),
        (dict[int, str], [{}, {1: "a"}], [{"a": "a"}, {1: 1}, []]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (Point, [Point(1)], [1, Colour.RED]),
        (Any, [1, None, object()], []),
        (torch.dtype, [torch.int64], ["int64"]),
    ],
)
def test_annotations(hint: Any, right: list[Any], wrong: list[Any]) -> None:
    check = check_of(hint)
    assert [check(value) for value in right] == [True] * len(right)
    assert [check(value) for value in wrong] == [False] * len(wrong)


def test_each_field_of_a_dataclass_has_a_check() -> None:
    ((name, check),) = checks_of_fields(Point)
    assert name == "x"
    assert check(1)
    assert not check("1")
