from __future__ import annotations

from adjoint.atlas.cycles import cycles_of


def test_files_that_import_each_other_are_one_cycle() -> None:
    found = cycles_of({"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["d"], "e": ["a"]})
    assert found["a"] == found["b"] == found["c"] == ["a", "b", "c"]
    assert found["d"] == ["d"]
    assert found["e"] == ["e"]


def test_what_is_imported_comes_first() -> None:
    order = list(cycles_of({"a": ["b", "c"], "b": ["c"], "c": []}))
    assert order == ["c", "b", "a"]


def test_a_long_chain_is_no_recursion() -> None:
    names = [str(number) for number in range(5000)]
    found = cycles_of({a: [b] for a, b in zip(names, names[1:] + names[:1], strict=True)})
    assert len(found["0"]) == 5000
