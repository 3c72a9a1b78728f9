from __future__ import annotations

from pathlib import Path

from adjoint.atlas.history import NO_HISTORY
from adjoint.atlas.store import NO_STATE, FileState, Share, State, Store
from adjoint.atlas.summaries import summarize
from tests.atlas_trees import facts


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.open() == NO_STATE
    found = facts("x = 1\n")
    store.put_facts("0123", found)
    store.put_facts("4567", found)
    store.put_summaries({"a.py": summarize("a.py", "0123", found, "x = 1\n")}, ["a.py"])
    state = State(
        {"a.py": FileState("0123", 6, 7)}, {"a.py_docs": "d"}, {"a.py": {"x": Share("e", 1)}}
    )
    store.close(state, State({"b.py": FileState("4567", 1, 1)}, {}, {}))
    again = Store(tmp_path)
    assert again.open() == state
    assert again.facts("0123") == found
    assert not again.has_facts("4567")  # No file has it.
    assert again.summaries()["a.py"].definitions["x"].line == 1
    assert again.history(tmp_path) == NO_HISTORY


def test_a_run_that_did_not_finish_left_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    store.close(State({"a": FileState("k", 1, 2)}, {"a_docs": "d"}, {}), NO_STATE)
    assert store.open().pages == {"a_docs": "d"}
    # The page is known, so that it can be removed, but not what it was made from.
    assert store.open() == State({}, {"a_docs": ""}, {})


def test_a_damaged_store_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    store.close(State({"a": FileState("k", 1, 2)}, {}, {}), NO_STATE)
    (store.folder / "state.json").write_text("[1, {")
    assert store.open() == NO_STATE
    assert store.summaries() == {}
