from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjoint.atlas.markdown import rendered
from adjoint.atlas.tree_pages import (
    Entry,
    by_initial,
    entries,
    initial,
    letter_page,
    names_page,
    search_script,
    shares_of,
    tags,
)
from tests.atlas_trees import PACKAGE, references_of, summaries_of


@pytest.fixture
def every(tmp_path: Path) -> list[Entry]:
    references = references_of(tmp_path, PACKAGE)
    found = summaries_of(PACKAGE)
    return [each for path in found for each in entries(found[path], references[path])]


def test_the_index_has_every_name_where_it_is_looked_for(every: list[Entry]) -> None:
    letters = by_initial(every)
    assert [each.name for each in letters["t"]] == ["test_add", "Till", "Till.total"]
    assert initial("_area") == "a"
    assert initial("ж") == "other"
    text = rendered(letter_page("t", letters["t"], frozenset(PACKAGE)))
    assert "[shop/till.py:8](../shop/till.py_docs.md#line-8)" in text
    assert "[1 file](../shop/till.py_kw.md)" in text
    assert "| [t](names/t.md) | 3 |" in rendered(names_page({"t": 3, "other": 1}))


def test_a_file_has_names_under_some_letters(tmp_path: Path) -> None:
    summary = summaries_of(PACKAGE)["shop/till.py"]
    here = references_of(tmp_path, PACKAGE)["shop/till.py"]
    found = list(entries(summary, here))
    assert [each.name for each in entries(summary, here, {"t"})] == ["Till", "Till.total"]
    parts = shares_of(found)
    assert parts["t"].names == 2
    assert sum(each.names for each in parts.values()) == len(found)
    moved = shares_of(each._replace(line=each.line + (each.name == "Till")) for each in found)
    assert {letter for letter in parts if parts[letter] != moved[letter]} == {"t"}


def test_the_search_has_every_name_and_file() -> None:
    text = search_script(summaries_of(PACKAGE), ".html")
    found = json.loads(text.removeprefix("window.ATLAS = ").removesuffix(";\n"))
    pages = found["pages"]
    rows = {(name, kind): (pages[page], anchor) for name, kind, page, anchor, _ in found["names"]}
    assert rows["Till.add", "method"] == ("shop/till.py_docs.html", "n-Till.add")
    assert rows["shop/tax.py", "file"] == ("shop/tax.py_docs.html", "")


def test_editors_have_tags() -> None:
    lines = tags(summaries_of(PACKAGE)).split("\n")
    assert 'add\tshop/till.py\t14;"\tkind:method\tname:Till.add' in lines
    assert lines[2:-1] == sorted(lines[2:-1])
