from __future__ import annotations

import json

from adjoint.atlas.summaries import first_sentence, from_json, numbered, summarize
from tests.atlas_trees import facts


def test_a_summary_comes_back_from_json() -> None:
    found = facts('"""A. B."""\nimport a\n\n\nclass B(a.C, D[int], metaclass=M):\n    """E."""\n')
    summary = summarize("x.py", "key", found, "")
    assert summary.definitions["B"].bases == ["a.C", "D"]
    assert from_json(json.loads(json.dumps(summary))) == summary


def test_only_the_shortest_calls_are_kept() -> None:
    source = "import a\n" + "".join(f"a.f({'1' * n})\n" for n in range(9, 0, -1))
    summary = summarize("x.py", "key", facts(source), source)
    assert summary.calls["a.f"] == [(10, 6, "a.f(1)"), (9, 7, "a.f(11)")]
    assert summary.uses["a.f"] == list(range(2, 11))


def test_no_two_definitions_share_a_name() -> None:
    symbols = facts("if a:\n    def f(): ...\nelse:\n    def f(): ...\n").symbols
    assert [name for name, _ in numbered(symbols)] == ["f", "f#2"]


def test_the_first_sentence() -> None:
    assert first_sentence("One\ntwo. Three.\n\nFour.") == "One two."
    assert first_sentence("See e.g. this\n\nNot that.") == "See e.g. this"
    assert first_sentence("") == ""
