from __future__ import annotations

from adjoint.atlas.cycles import cycles_of
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


CYCLE = {"a": {"b", "c", "d"}, "b": {"a", "c"}, "c": {"d"}, "d": set[str]()}


def test_levels_go_up_with_imports_and_are_the_same_in_a_cycle() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": set[str]()}
    assert _levels(edges, cycles_of(edges)) == {"c": 0, "b": 1, "a": 2}
    assert _levels(CYCLE, cycles_of(CYCLE)) == {"d": 0, "c": 1, "a": 2, "b": 2}


def test_a_cycle_is_said_to_be_one() -> None:
    imported = {"a.py": ["b.py"], "b.py": ["a.py", "c.py"], "c.py": []}
    page = map_page(summaries_of(dict.fromkeys(imported, "x = 1\n")), imported, {})
    assert "- [`a.py`](a.py_docs.md), [`b.py`](b.py_docs.md)\n" in rendered(page)
    (drawing,) = (block for block in page.blocks if isinstance(block, Drawing))
    assert drawing.svg.count("<path") == 1
    assert "import each other" not in rendered(map_page(summaries_of({}), {}, {}))


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
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert list(_direct(list("abc"), edges, cycles_of(edges))) == [("a", "b"), ("b", "c")]
    found = list(_direct(list("abcd"), CYCLE, cycles_of(CYCLE)))
    assert found == [("a", "c"), ("b", "c"), ("c", "d")]
