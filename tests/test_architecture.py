"""What documents and docstrings name exists, and ARCHITECTURE has a row for each module.

Each rule is a function from text to the violations in it, so that it can be shown to find some.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from pathlib import Path

import pytest

from tests.source_files import PACKAGE, ROOT, relative, sources, written_here


def missing_paths(text: str, *beside: Path) -> list[str]:
    """The paths of modules, packages, tests and documents in a text that are not there.

    `beside`: further folders that the text may start from.
    """
    spans = re.findall(r"`([^`\s]+)`", text)
    paths = [span for span in spans if re.fullmatch(r"[\w./<>]+(/|\.(py|md|txt|toml))", span)]
    return [
        path
        for path in paths
        if not any((root / path.partition("<")[0]).exists() for root in (ROOT, PACKAGE, *beside))
    ]


@functools.cache
def definitions() -> set[str]:
    """Names of modules, classes, functions, attributes and constants, in the package and its tests,
    and those that Python and the environment have."""
    found = {*dir(builtins), "ADJOINT_CACHE", *(path.stem for path in sources("adjoint"))}
    for path in written_here():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


def missing_names(text: str, known: set[str]) -> list[str]:
    """Classes, constants and attributes of ours in a text that nothing defines."""
    spans = re.findall(r"`([\w.]+)(?:\([^`]*\))?`", text)
    classes = [s for s in spans if re.fullmatch(r"_?([A-Z][a-z]+){2,}|[A-Z]+(_[A-Z]+)+", s)]
    owners = {
        "Compiler",
        "Options",
        "adjoint",
        "failing",
        "origins",
        "program",
        "target",
        "targets",
    }
    attributes = [s.rpartition(".")[2] for s in spans if s.partition(".")[0] in owners and "." in s]
    return [name for name in (*classes, *attributes) if name not in known and name != "py"]


DOCUMENTS = ["ARCHITECTURE.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_documents_name_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    assert missing_paths(text) == []
    assert missing_names(text, definitions()) == []


def test_what_docstrings_of_modules_name_exists() -> None:
    missing = {
        relative(path): missing_paths(text, path.parent) + missing_names(text, definitions())
        for path in sources("adjoint")
        if (text := ast.get_docstring(ast.parse(path.read_text())))
    }
    assert not {path: names for path, names in missing.items() if names}


def test_what_does_not_exist_is_found() -> None:
    text = (
        "`adjoint/nothing.py`, `lower/nothing/`, `adjoint/lower/`, `rules/<family>.py`, `Makefile`"
    )
    assert missing_paths(text) == ["adjoint/nothing.py", "lower/nothing/"]
    assert missing_paths("`fusion.py`") == ["fusion.py"]
    assert missing_paths("`fusion.py`", PACKAGE / "lower") == []
    text = "`NoSuchClass`, `MAX_NOTHING`, `Compiler.no_such`, `Compiler.plan`, `FallbackWarning`"
    assert missing_names(text, definitions()) == ["NoSuchClass", "MAX_NOTHING", "no_such"]


def unknown_arguments(text: str) -> list[str]:
    """What docstrings explain as an argument, in "`name`: ...", and is none."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        given += tuple(each for each in (node.args.vararg, node.args.kwarg) if each is not None)
        explained = re.findall(r"(?:^|[.\n]\s+|\n)`(\w+)`: ", ast.get_docstring(node) or "")
        found += [
            f"{node.name}: {each}" for each in explained if each not in {a.arg for a in given}
        ]
    return found


def test_arguments_that_docstrings_explain_exist() -> None:
    found = {relative(path): unknown_arguments(path.read_text()) for path in sources("adjoint")}
    assert not {path: names for path, names in found.items() if names}


def test_an_explained_argument_that_does_not_exist_is_found() -> None:
    text = 'def f(x, *rest):\n    """What.\n\n    `x`: one.  `rest`: more.  `y`: gone.\n    """'
    assert unknown_arguments(text) == ["f: y"]


def rows_of_packages(text: str) -> list[list[str]]:
    """The modules of each row of the table of packages, from top to bottom."""
    _, _, text = text.partition("## Packages")
    table, _, _ = text.partition("\n## ")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [[name.strip("/") for name in re.findall(r"`([^`]+)`", row)] for row in rows]


def layers(text: str) -> dict[str, int]:
    """For each module that import-linter's contract names, its layer, counted from the top."""
    _, _, listed = text.partition("\nlayers = [")
    lines = re.findall(r'^    "([^"]+)"', listed.partition("\n]")[0], re.MULTILINE)
    return {name: n for n, line in enumerate(lines) for name in re.findall(r"\w+", line)}


def test_each_module_has_its_row_in_architecture() -> None:
    rows = rows_of_packages((ROOT / "ARCHITECTURE.md").read_text())
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py"} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    named = {name for row in rows for name in row}
    assert named == {name for name in there if not name.startswith("__")}


def test_rows_are_in_the_order_of_the_layers() -> None:
    """A module imports only from rows below its own, and not from its own."""
    rows = rows_of_packages((ROOT / "ARCHITECTURE.md").read_text())
    of = layers((ROOT / "pyproject.toml").read_text())
    assert [row for row in rows if len({of[name] for name in row}) > 1] == []
    assert [of[row[0]] for row in rows] == sorted(of[row[0]] for row in rows)
