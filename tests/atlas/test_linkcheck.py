from __future__ import annotations

from pathlib import Path

from adjoint.atlas.linkcheck import Places, dead, dead_in, places_of
from tests.atlas.test_document import PAGE
from tests.atlas_trees import planted


def test_places_of_a_page() -> None:
    places = places_of(PAGE)
    assert places == Places(
        ["n-row", "top"], 2, {"c_docs": ["n-x"], "d_docs": [""], "e_docs": [""]}
    )
    assert places.has("line-2")
    assert not places.has("line-3")
    assert not places.has("line-x")


def test_links_that_lead_nowhere() -> None:
    places = {
        "a": Places(["x"], 1, {"a": ["x", "y"], "b": [""], "c": ["line-3"]}),
        "c": Places([], 2, {}),
    }
    assert dead(places, ["a"]) == [
        "a: a has no place y",
        "a: there is no page b",
        "a: c has no place line-3",
    ]
    assert dead(places, ["c"]) == []


def test_files_are_checked_as_they_lie(tmp_path: Path) -> None:
    planted(
        tmp_path,
        {
            "a.md": '[x](b/c.md#n) [y](gone.md) `[no](link)` <a href="b/c.md#m"></a> [z](#here)',
            "b/c.md": '<a id="n"></a> [up](../a%20b.md)',
            "a b.md": '<span id="here"></span>',
        },
    )
    assert dead_in(tmp_path) == [
        "a.md: a.md has no place here",
        "a.md: b/c.md has no place m",
        "a.md: there is no file gone.md",
    ]
