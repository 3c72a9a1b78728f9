from __future__ import annotations

from adjoint.atlas.document import Drawing
from adjoint.atlas.map_page import MAX_MODULES, _direct, _levels, _modules, map_page
from adjoint.atlas.markdown import rendered
from tests.atlas_trees import PACKAGE, summaries_of


def test_modules_are_opened_while_they_fit() -> None:
    paths = [f"a/{n}.py" for n in range(30)] + [f"b/{n}.py" for n in range(20)] + ["c.py"]
    found = _modules(paths)
    assert "b/" in found
    assert "c.py" in found
    assert "a/3.py" in found
    assert len(found) <= MAX_MODULES


def test_levels_go_up_with_imports_and_survive_cycles() -> None:
    assert _levels({"a": {"b"}, "b": {"c"}, "c": set()}) == {"c": 0, "b": 1, "a": 2}
    assert set(_levels({"a": {"b"}, "b": {"a"}})) == {"a", "b"}


def test_the_map_has_both_directions() -> None:
    imported = {path: ["shop/tax.py"] if path == "shop/till.py" else [] for path in PACKAGE}
    page = map_page(summaries_of(PACKAGE), imported, {})
    text = rendered(page)
    till, tax = (f"[`shop/{name}.py`](shop/{name}.py_docs.md)" for name in ("till", "tax"))
    assert f"| {till} | Counts money. | {tax} |  |" in text
    (drawing,) = (block for block in page.blocks if isinstance(block, Drawing))
    assert drawing.svg.count("<rect") == 2
    assert drawing.svg.count("<path") == 1


def test_imports_that_follow_from_others_have_no_line() -> None:
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert list(_direct(["a", "b", "c"], edges)) == [("a", "b"), ("b", "c")]
    around = {"a": {"b", "c"}, "b": {"a", "c"}, "c": set()}
    assert ("a", "b") in list(_direct(["a", "b", "c"], around))
