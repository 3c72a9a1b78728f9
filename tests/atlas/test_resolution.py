"""After any change, what is resolved again and what is kept mean what a fresh run means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjoint.atlas.modules import Modules
from adjoint.atlas.names import Names
from adjoint.atlas.resolution import Resolved, from_json, resolve
from adjoint.atlas.summaries import Summary
from tests.atlas_trees import summaries_of

FILES = {
    "p/__init__.py": "from p.a import Thing as Renamed\n",
    "p/a.py": "class Base:\n    def shared(self): ...\n\n\nclass Thing(Base): ...\n",
    "p/b.py": "from p.a import Thing\n\n\nclass Sub(Thing):\n    def f(self): self.shared()\n",
    "use.py": "import p\n\np.Renamed().x\np.Renamed.shared\n",
    "star.py": "from p.b import *\n\nSub()\nOther()\n",
    "far.py": "import os\n\nos.getcwd()\n",
}


def names_of(summaries: dict[str, Summary]) -> Names:
    return Names(summaries, Modules(Path("/nowhere"), summaries))


def test_resolved_names_come_back_from_json() -> None:
    found, _ = resolve(names_of(summaries_of(FILES)), {}, {})
    for each in found.values():
        assert from_json(json.loads(json.dumps(each))) == each


@pytest.mark.parametrize(
    ("change", "is_small"),
    [
        ({"far.py": "import os\n\nos.getpid()\n"}, True),
        ({"p/a.py": FILES["p/a.py"] + "\n\n# More.\n"}, True),
        ({"p/a.py": FILES["p/a.py"] + "\n\ndef new(): ...\n"}, True),
        ({"p/a.py": FILES["p/a.py"].replace("shared", "other")}, False),
        ({"p/a.py": FILES["p/a.py"].replace("Thing", "Thong")}, False),
        ({"p/a.py": FILES["p/a.py"].replace("(Base)", "")}, False),
        ({"p/__init__.py": ""}, False),
        ({"p/__init__.py": "from p.b import Sub as Renamed\n"}, False),
        ({"p/b.py": FILES["p/b.py"] + "\n\nclass Other: ...\n"}, False),
        ({"star.py": "from p.a import *\n\nThing()\n"}, False),
        ({"p/new.py": "x = 1\n"}, False),
    ],
)
def test_after_a_change_names_mean_what_they_mean_in_a_fresh_run(
    change: dict[str, str], is_small: bool
) -> None:
    before = summaries_of(FILES)
    kept: dict[str, Resolved]
    kept, _ = resolve(names_of(before), {}, {})
    after = summaries_of({**FILES, **change})
    found, anew = resolve(names_of(after), before, kept)
    fresh, _ = resolve(names_of(after), {}, {})
    assert found == fresh
    assert set(change) <= set(anew)
    if is_small:
        assert anew == sorted(change)
