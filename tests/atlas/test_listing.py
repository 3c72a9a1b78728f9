from __future__ import annotations

from pathlib import Path

from adjoint.atlas.document import Link
from adjoint.atlas.listing import listing
from tests.atlas.test_subject import subject_of


def test_names_are_links_to_their_definitions(tmp_path: Path) -> None:
    lines = listing(subject_of(tmp_path, "shop/till.py")).lines
    assert len(lines) == 20
    assert lines[18] == (
        "        ",
        Link("self.total", "shop/till.py_docs", "n-Till.total"),
        " += ",
        Link("tax.of", "shop/tax.py_docs", "n-of"),
        "(price)",
    )
    assert lines[1] == ()


def test_files_without_a_page_have_no_links(tmp_path: Path) -> None:
    lines = listing(subject_of(tmp_path, "shop/till.py", {"shop/till.py"})).lines
    assert lines[18][-1] == " += tax.of(price)"
