from __future__ import annotations

import pytest

from adjoint.atlas.comments import plain
from tests.atlas_trees import facts, needs_parsers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("// a\n// b", "a\nb"),
        ("/**\n * a\n *\n * b\n */", "a\n\nb"),
        ("/* a */", "a"),
        ("//===----===//\n// a\n//===----===//", "a"),
        ("/// a", "a"),
    ],
)
def test_comments_without_their_marks(text: str, expected: str) -> None:
    assert plain(text) == expected


@needs_parsers
@pytest.mark.parametrize(
    ("text", "purpose"),
    [
        ("// Sorts.\n\nint f(void);\n", "Sorts."),
        ("// Copyright 2020 Ada\n\n// Sorts.\n\nint f(void);\n", "Sorts."),
        ("/* Sorts. */\n#include <a.h>\n", "Sorts."),
        ("// Of f.\nint f(void);\n", ""),
        ("int f(void);\n// Late.\n", ""),
    ],
)
def test_a_file_says_what_it_is_for_at_its_top(text: str, purpose: str) -> None:
    assert facts(text, "C").purpose == purpose


@needs_parsers
def test_a_comment_beside_a_line_is_not_about_the_next() -> None:
    found = facts("int a; // Of a.\nint b;\n// Of c.\nint c;\n", "C")
    assert {symbol.name: symbol.doc for symbol in found.symbols} == {"a": "", "b": "", "c": "Of c."}
