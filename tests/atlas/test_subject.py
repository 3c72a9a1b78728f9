from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.atlas.document import Code, Link
from adjoint.atlas.subject import Subject, grouped, joined
from tests.atlas_trees import PACKAGE, facts, references_of


def subject_of(root: Path, path: str, documented: set[str] | None = None) -> Subject:
    """A file of the package as its pages see it."""

    shown = frozenset(PACKAGE if documented is None else documented)
    found = references_of(root, PACKAGE)[path]
    return Subject(path, facts(PACKAGE[path]), PACKAGE[path], found, shown)


@pytest.fixture
def till(tmp_path: Path) -> Subject:
    return subject_of(tmp_path, "shop/till.py")


def test_links_lead_to_pages_that_exist(till: Subject, tmp_path: Path) -> None:
    assert till.line(3) == Link("3", "shop/till.py_docs", "line-3")
    assert till.file("shop/tax.py") == Link("shop/tax.py", "shop/tax.py_docs", is_code=True)
    alone = subject_of(tmp_path, "shop/till.py", {"shop/till.py"})
    assert alone.file("shop/tax.py") == Code("shop/tax.py")
    assert alone.line(1, path="shop/tax.py") == "1"
    assert alone.name("shop/tax.py", "of") == Code("of")


def test_names_in_sentences_are_links(till: Subject) -> None:
    assert till.prose("See `LIMIT`, `tax.of` and `x`.") == (
        "See ",
        Link("LIMIT", "shop/till.py_docs", "n-LIMIT", is_code=True),
        ", ",
        Link("tax.of", "shop/tax.py_docs", "n-of", is_code=True),
        " and ",
        Code("x"),
        ".",
    )


def test_lines_that_use_a_name_of_the_file_itself(till: Subject) -> None:
    assert till.own_lines["LIMIT"] == [17, 18]
    assert till.own_lines["Till.total"] == [12, 19, 20]


def test_many_lines_are_counted(till: Subject) -> None:
    assert till.lines(range(1, 5), most=2)[-1] == " and 2 more"
    assert grouped([("a", 2), ("b", 1), ("a", 3)]) == {"a": [2, 3], "b": [1]}
    assert joined(["a", "b"]) == ("a", ", ", "b")
