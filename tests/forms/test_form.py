from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from adjoint.forms.form import Form, Malformed, Unwritable


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: float | None = None
    colour: Colour = Colour.RED


@dataclass(frozen=True, eq=False)
class Link:
    """Compared by identity."""

    name: str
    others: tuple[Link, ...] = ()


FORM = Form([Point, Colour], shared=[Link], functions={"len": len})


def again(value: Any) -> Any:
    return FORM.value(FORM.text(value))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, and NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(),
    st.floats(allow_nan=False),
    st.just(math.nan),
)
VALUES = st.recursive(
    PLAIN, lambda inside: st.lists(inside, max_size=4) | st.lists(inside, max_size=4).map(tuple)
)


@given(VALUES)
def test_values_are_read_as_they_were_written(value: Any) -> None:
    assert same(again(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2), 3: None},
        slice(1, None, 2),
        frozenset({1, 2, 3}),
        1.5 + 2j,
        torch.float32,
        torch.bfloat16,
        torch.sparse_csr,
        torch.channels_last,
        torch.device("cuda", 1),
        torch.ops.aten.mm.default,
        torch.ops.aten.sum.dim_IntList,
        torch.ops.adjoint.with_data.default,
        IndexError,
        len,
        Colour.BLUE,
        Point(3, 1.5, Colour.BLUE),
        (Point(1), Point(2)),
        sympy.Symbol("s0", integer=True, positive=True) * 2 + 1,
    ],
    ids=str,
)
def test_more_values(value: Any) -> None:
    assert same(again(value), value)


def test_what_is_shared_stays_shared() -> None:
    leaf = Link("leaf")
    one, other = again((Link("a", (leaf, leaf)), Link("b", (leaf,))))
    assert one.others[0] is one.others[1] is other.others[0]
    assert (one.name, other.name) == ("a", "b")


def test_a_long_chain_of_shared_values() -> None:
    """As a tree it would have 2**60 leaves."""
    link = Link("0")
    for number in range(60):
        link = Link(str(number), (link, link))
    found = again(link)
    assert (found.name, found.others[0] is found.others[1]) == ("59", True)


@pytest.mark.parametrize("value", [object(), print, int, torch.ones(2), Form, iter("")])
def test_what_no_text_stands_for(value: Any) -> None:
    with pytest.raises(Unwritable):
        FORM.text((value,))


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (3, "a document is a table and a value"),
        ([], "a document is a table and a value"),
        ([[], 1, 2], "a document is a table and a value"),
        ([{}, 1], "a document is a table and a value"),
        ([[], []], "[] is the form of nothing"),
        ([[], [1]], "[1] is the form of nothing"),
        ([[], {"a": 1}], "{'a': 1} is the form of nothing"),
        ([[], ["nothing", 1]], "there is no 'nothing'"),
        ([[], ["shared", 0]], "there is no shared value 0"),
        ([[["Link", "a", ["tuple", ["shared", 0]]]], 1], "there is no shared value 0"),
        ([[], ["shared", True]], "there is no shared value True"),
        ([[], ["Point", 1, None]], "Point has 3 fields, not 2"),
        ([[], ["Point", "1", None, ["Colour", "RED"]]], "Point.x is no str"),
        ([[], ["Point", True, None, ["Colour", "RED"]]], "Point.x is no bool"),
        ([[], ["Point", 1, 2, ["Colour", "RED"]]], "Point.y is no int"),
        ([[], ["Point", 1, None, ["Colour", "GREEN"]]], "'GREEN'"),
        ([[], ["Point", 1, None, None]], "Point.colour is no NoneType"),
        ([[], ["Colour", 1]], "a name is a text"),
        ([[], ["float", "one"]], "invalid hexadecimal floating-point string"),
        ([[], ["float", 1.5]], "a name is a text"),
        ([[], 1.5], "1.5 is the form of nothing"),
        ([[], ["dtype", "Tensor"]], "torch has no dtype 'Tensor'"),
        ([[], ["dtype", "no_such"]], "torch has no dtype 'no_such'"),
        ([[], ["dtype", ["list"]]], "a name is a text"),
        ([[], ["device", "nowhere"]], "device string: nowhere"),
        (
            [[], ["op", "aten::mm", "default", "0"]],
            "aten::mm.default takes other arguments in this torch",
        ),
        (
            [[], ["op", "aten::no_such", "default", "0"]],
            "torch has no operator aten::no_such.default",
        ),
        ([[], ["op", "mm", "default", "0"]], "torch has no operator mm.default"),
        (
            [[], ["op", "__class__::mro", "default", "0"]],
            "torch has no operator __class__::mro.default",
        ),
        ([[], ["function", "eval"]], "'eval'"),
        ([[], ["error", "SystemExit"]], "'SystemExit'"),
        ([[], ["dict", [1]]], "has length 1; 2 is required"),
        ([[], ["dict", [["list"], 1]]], "unhashable type: 'list'"),
        ([[], ["set", ["list"]]], "unhashable type: 'list'"),
        ([[], ["slice"]], "slice expected at least 1 argument, got 0"),
        (
            [[], ["expr", ["Symbol", "s0; import os", "integer"]]],
            "['s0; import os', 'integer'] is no symbol",
        ),
        ([[], ["expr", ["Pow", 10, ["Pow", 10, 10]]]], "a power of sizes has a small exponent"),
        ([[], ["expr", ["lambda", 1]]], "there is no 'lambda'"),
    ],
    ids=str,
)
def test_what_is_no_form(tree: Any, why: str) -> None:
    with pytest.raises(Malformed, match=re.escape(why)):
        FORM.value(json.dumps(tree))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\0", '"', "[[],1]]"])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(Malformed):
        FORM.value(text)
