from __future__ import annotations

from pathlib import Path

from adjoint.atlas.keyword_page import keyword_page
from adjoint.atlas.markdown import rendered
from tests.atlas.test_subject import subject_of
from tests.atlas_trees import needs_parsers


@needs_parsers
def test_names_by_kind_with_lines_sections_and_users(tmp_path: Path) -> None:
    text = rendered(keyword_page(subject_of(tmp_path, "shop/till.py"))).replace("\\", "")
    headings = [line.partition("</a>")[2] for line in text.split("\n") if line.startswith("## ")]
    assert headings == [
        "Classes and structs",
        "Functions and methods",
        "Constants",
        "Fields",
        "Imports and includes",
        "Error messages",
    ]
    (row,) = (line for line in text.split("\n") if line.startswith("| [`Till.add`]"))
    _, name, kind, lines, found, users, _ = (cell.strip() for cell in row.split("|"))
    page = "till.py_docs.md"
    assert name == f"[`Till.add`]({page}#n-Till.add)"
    assert kind == "method"
    assert lines == f"[14]({page}#line-14)"
    assert found == (
        f"[Structure]({page}#n-Till.add), [Cross-references]({page}#s-cross-references)"
    )
    assert users == ""
    (row,) = (line for line in text.split("\n") if line.startswith("| [`Till`]"))
    assert "[Tests](till.py_docs.md#s-tests), [Usage](till.py_docs.md#s-usage)" in row
    assert "[tests/test_till.py](../tests/test_till.py_docs.md#line-5)" in row
    assert "| `{price} is over {LIMIT}` | [18](till.py_docs.md#line-18) |" in text


def test_words_are_no_names(tmp_path: Path) -> None:
    text = rendered(keyword_page(subject_of(tmp_path, "shop/till.py")))
    for word in ("price", "money", "for", "euros", "Holds"):
        assert f"[`{word}`]" not in text
