from __future__ import annotations

import json

from adjoint.atlas.facts import HEADINGS, bare, from_json, owner
from tests.atlas_trees import facts


def test_facts_come_back_from_json() -> None:
    found = facts('"""A."""\nimport os\n\n\ndef f():\n    """B."""\n    raise OSError("no")\n')
    assert found.symbols
    assert found.imports
    assert found.messages
    assert from_json(json.loads(json.dumps(found))) == found


def test_parts_of_qualified_names() -> None:
    assert (bare("a::b::c"), owner("a::b::c")) == ("c", "a::b")
    assert (bare("A.b"), owner("A.b")) == ("b", "A")
    assert (bare("a"), owner("a")) == ("a", "")


def test_the_index_has_the_kinds_that_readers_look_for() -> None:
    assert list(dict.fromkeys(HEADINGS.values())) == [
        "Classes and structs",
        "Types",
        "Functions and methods",
        "Constants",
        "Variables",
        "Fields",
        "Macros",
        "Namespaces",
        "Options",
    ]
