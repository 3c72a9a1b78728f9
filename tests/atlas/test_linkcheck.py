from __future__ import annotations

from pathlib import Path

from adjoint.atlas.linkcheck import Places, dead, dead_in, links_of, places_of
from tests.atlas.test_document import PAGE
from tests.atlas_trees import planted


def test_places_and_links_of_a_page() -> None:
    places = places_of(PAGE)
    assert places == Places(frozenset({"n-row", "top"}), 2)
    assert places.has("line-2")
    assert not places.has("line-3")
    assert not places.has("line-x")
    assert links_of(PAGE) == {"c_docs": ["n-x"], "d_docs": [""], "e_docs": [""]}


def test_places_that_are_gone() -> None:
    before = Places(frozenset({"x"}), 2)
    assert not Places(frozenset({"x", "y"}), 3).lacks(before)
    assert Places(frozenset({"x"}), 1).lacks(before)
    assert Places(frozenset(), 2).lacks(before)


def test_links_that_lead_nowhere() -> None:
    places = {"a": Places(frozenset({"x"}), 1), "c": Places(frozenset(), 2)}
    links = {"a": {"a": ["x", "y"], "b": [""], "c": ["line-2", "line-3"]}}
    assert dead(places, links) == [
        "a: a has no place y",
        "a: there is no page b",
        "a: c has no place line-3",
    ]


def test_files_are_checked_as_they_lie(tmp_path: Path) -> None:
    planted(
        tmp_path,
        {
            "a.md": '[x](b/c.md#n) [y](gone.md) `[no](link)` <a href="b/c.md#m"></a> [z](#here)',
            "b/c.md": '<a id="n"></a> [up](../a%20b.md)',
            "d.md": '<pre>\n[no](link) &lt;a href="no">\n</pre>\n\n``[no](link) ` ``\n',
            "a b.md": '<span id="here"></span>',
        },
    )
    assert dead_in(tmp_path) == [
        "a.md: a.md has no place here",
        "a.md: b/c.md has no place m",
        "a.md: there is no file gone.md",
    ]


def test_text_that_only_looks_like_a_link(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("See \\[there\\](https://example.org), [here](page.md).\n")
    assert dead_in(tmp_path) == []
