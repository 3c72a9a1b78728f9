from __future__ import annotations

from pathlib import Path

from tests.atlas_trees import PACKAGE, needs_parsers, references_of


def test_dependencies_go_both_ways(tmp_path: Path) -> None:
    found = references_of(tmp_path, PACKAGE)
    assert [(r.module, r.name, r.files) for r in found["shop/till.py"].requests] == [
        ("shop", "tax", ["shop/tax.py"])
    ]
    assert [(s.path, s.line) for s in found["shop/tax.py"].importers] == [("shop/till.py", 3)]
    # The till, the package, which imports it, and the test.
    assert found["shop/tax.py"].dependents == 3


def test_uses_tests_and_call_sites(tmp_path: Path) -> None:
    found = references_of(tmp_path, PACKAGE)["shop/till.py"]
    assert found.users["Till"] == [("tests/test_till.py", [5])]
    (site,) = found.sites["Till"]
    assert (site.path, site.line) == ("tests/test_till.py", 5)
    (tested,) = found.tests["Till"]
    assert (tested.path, tested.test) == ("tests/test_till.py", "test_add")
    assert found.test_files == ["tests/test_till.py"]


@needs_parsers
def test_documents_speak_of_files_and_names(tmp_path: Path) -> None:
    found = references_of(tmp_path, PACKAGE)["shop/till.py"]
    (role,) = found.role
    assert (role.document, role.line, role.sentence) == (
        "README.md",
        3,
        "`shop/till.py` counts money.",
    )
    assert [s.line for s in found.documented["Till.add"]] == [5]


def test_cycles(tmp_path: Path) -> None:
    files = {"a.py": "import b\n", "b.py": "import c\n", "c.py": "import a\n", "d.py": "import a\n"}
    found = references_of(tmp_path, files)
    assert found["a.py"].cycle == ["b.py", "c.py"]
    assert found["d.py"].cycle == []
    assert {path: each.dependents for path, each in found.items()} == {
        "a.py": 3,
        "b.py": 3,
        "c.py": 3,
        "d.py": 0,
    }


@needs_parsers
def test_a_function_of_c_is_declared_and_defined(tmp_path: Path) -> None:
    files = {
        "f.h": "int f(void);\n",
        "f.c": '#include "f.h"\nint f(void) { return 0; }\n',
        "g.c": "int f(void) { return 1; }\n",
    }
    found = references_of(tmp_path, files)
    assert [(s.path, s.line) for s in found["f.h"].elsewhere["f"]] == [("f.c", 2)]
    assert [(s.path, s.line) for s in found["f.c"].elsewhere["f"]] == [("f.h", 1)]
    assert found["g.c"].elsewhere == {}
