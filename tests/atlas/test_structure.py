from __future__ import annotations

from pathlib import Path

from adjoint.atlas.document import Heading, Page, Table
from adjoint.atlas.markdown import rendered
from adjoint.atlas.structure import structure
from tests.atlas.test_subject import subject_of


def test_every_name_is_there_once(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, "shop/till.py")
    page = Page("x", "x", tuple(structure(subject)))
    assert {f"n-{name}" for name, _ in subject.symbols} == page.anchors()
    levels = [(b.level, b.anchor) for b in page.blocks if isinstance(b, Heading)]
    assert levels == [(3, "n-Till"), (4, "n-Till.__init__"), (4, "n-Till.add")]
    assert sum(isinstance(block, Table) for block in page.blocks) == 2


def test_signature_docstring_lines_and_nesting(tmp_path: Path) -> None:
    blocks = tuple(structure(subject_of(tmp_path, "shop/till.py")))
    text = rendered(Page("shop/till.py_docs", "", blocks))
    assert "`def add(self, price: int) -> int`" in text
    assert "Method. Lines [14-20](#line-14) (7 lines), nesting 2." in text
    assert "Class. Lines [8-20](#line-8) (13 lines), used in 1 other file." in text
    assert "Holds [`LIMIT`](#n-LIMIT) euros." in text
