from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.atlas.modules import Modules
from adjoint.atlas.names import Names
from tests.atlas_trees import needs_parsers, summaries_of

PYTHON = {
    "p/__init__.py": "from .a import A as Renamed\nfrom .b import *\n",
    "p/a.py": "from p.b import Base\n\n\nclass A(Base):\n    def own(self): ...\n",
    "p/b.py": "class Base:\n    def shared(self): ...\n\n\ndef f(): ...\n",
    "use.py": "import p\nimport p.a\nimport p.b as q\nfrom p import a, nothing\n",
    "round.py": "from again import x\n",
    "again.py": "from round import x\n",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p.Renamed", ("p/a.py", "A", 2)),
        ("p.f", ("p/b.py", "f", 2)),
        ("p.a.A.own", ("p/a.py", "A.own", 4)),
        ("p.a.A.shared", ("p/b.py", "Base.shared", 4)),
        ("p.a.A.unknown", ("p/a.py", "A", 3)),
        ("q.Base", ("p/b.py", "Base", 2)),
        ("a.A", ("p/a.py", "A", 2)),
        ("a", ("p/a.py", "", 1)),
        ("nothing", None),
        ("p.nothing", None),
    ],
)
def test_names_are_followed_through_imports(
    name: str, expected: tuple[str, str, int] | None
) -> None:
    summaries = summaries_of(PYTHON)
    assert (
        Names(summaries, Modules(Path("/nowhere"), summaries)).meaning("use.py", name) == expected
    )


def test_a_circle_of_imports_means_nothing() -> None:
    summaries = summaries_of(PYTHON)
    assert Names(summaries, Modules(Path("/nowhere"), summaries)).meaning("round.py", "x") is None


@needs_parsers
def test_files_of_a_package_of_go_know_each_other() -> None:
    files = {
        "p/a.go": "package p\n\nfunc F() { G(); other() }\n",
        "p/b.go": "package p\n\nfunc G() {}\n",
        "q/c.go": 'package q\n\nimport "x/p"\n\nfunc H() { p.G() }\n',
    }
    summaries = summaries_of(files)
    names = Names(summaries, Modules(Path("/nowhere"), summaries))
    assert names.meaning("p/a.go", "G") == ("p/b.go", "G", 1)
    assert names.meaning("p/a.go", "other") is None
    assert names.meaning("q/c.go", "p.G") == ("p/b.go", "G", 2)


@needs_parsers
def test_names_of_c_come_from_included_files() -> None:
    files = {
        "a.h": '#include "b.h"\nint only_a(void);\n',
        "b.h": "#define B 1\nnamespace n { int g(); }\n",
        "c.h": "int hidden(void);\nint twice(void);\n",
        "d.cpp": '#include "a.h"\nint f() { return only_a() + B + n::g() + hidden(); }\n',
    }
    summaries = summaries_of(files)
    names = Names(summaries, Modules(Path("/nowhere"), summaries))
    assert names.meaning("d.cpp", "only_a") == ("a.h", "only_a", 1)
    assert names.meaning("d.cpp", "B") == ("b.h", "B", 1)
    assert names.meaning("d.cpp", "n::g") == ("b.h", "n::g", 2)
    assert names.meaning("d.cpp", "hidden") is None
    assert names.closure("d.cpp") == {"a.h", "b.h"}
