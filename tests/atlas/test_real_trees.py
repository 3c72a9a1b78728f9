"""Trees that others wrote: every name with its kind and line, as independent parsers see them.

Python's `ast` is the judge of torch's Python, and universal-ctags, where it is installed, of its
headers.
"""

from __future__ import annotations

import ast
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from adjoint.atlas.extracting import extract
from adjoint.atlas.facts import bare
from adjoint.atlas.linkcheck import dead_in
from adjoint.atlas.making import make
from adjoint.atlas.tree import walk
from tests.atlas_trees import needs_parsers

TORCH = Path(torch.__file__).parent
SAMPLED = 300
MISSED_AT_MOST = 0.01

# Kind of ctags: our kinds of the same thing.
KINDS = {
    "class": {"class"},
    "struct": {"struct"},
    "union": {"union"},
    "enum": {"enum"},
    "enumerator": {"constant"},
    "function": {"function", "method"},
    "prototype": {"function", "method"},
    "macro": {"macro"},
    "typedef": {"type"},
    "namespace": {"namespace"},
    "member": {"field"},
    "variable": {"variable", "constant", "field"},
}


def definitions(text: str) -> set[tuple[str, str, int]]:
    """Name, kind and line of every class and function, by a walk that is not ours."""
    found: set[tuple[str, str, int]] = set()

    def walk_into(node: ast.AST, prefix: str, in_class: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found.add((prefix + child.name, "class", child.lineno))
                walk_into(child, f"{prefix}{child.name}.", True)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                kind = "method" if in_class else "function"
                found.add((prefix + child.name, kind, child.lineno))
                walk_into(child, f"{prefix}{child.name}.", False)
            else:
                walk_into(child, prefix, in_class)

    walk_into(ast.parse(text), "", False)
    return found


def indexed(page: Path) -> dict[str, set[tuple[str, int]]]:
    """The names of a page of names, with kinds and lines."""
    found: dict[str, set[tuple[str, int]]] = {}
    for row in page.read_text().split("\n"):
        match = re.match(r"\| \[`([^`]+)`\]\([^)]*\) \| (\w+) \| \[(\d+)\]", row)
        if match:
            found.setdefault(match[1], set()).add((match[2], int(match[3])))
    return found


@pytest.mark.parametrize(
    "files",
    [
        ["descriptors.py", "utils.py"],
        pytest.param(["*.py"], marks=pytest.mark.slow),
    ],
)
def test_every_class_and_function_of_aot_autograd_is_indexed(
    files: list[str], tmp_path: Path
) -> None:
    root = TORCH / "_functorch" / "_aot_autograd"
    made = make(root, tmp_path, only="*.py" if files == ["*.py"] else None, jobs=1)
    assert made.dead_links == ()
    for file in sorted(file for pattern in files for file in root.glob(pattern)):
        check_names(file, tmp_path / f"{file.name}_kw.md")


@pytest.mark.slow
def test_every_class_and_function_of_inductors_passes_is_indexed(tmp_path: Path) -> None:
    root = TORCH / "_inductor" / "fx_passes"
    assert make(root, tmp_path, jobs=1).dead_links == ()
    assert dead_in(tmp_path) == []
    checked = 0
    for file in sorted(root.rglob("*.py")):
        page = tmp_path / f"{file.relative_to(root).as_posix()}_kw.md"
        checked += check_names(file, page)
    assert checked > SAMPLED


def check_names(file: Path, page: Path) -> int:
    """The index has each class and function with kind and line, and nothing that is no name."""
    text = file.read_text()
    names = indexed(page)
    expected = definitions(text)
    for name, kind, line in expected:
        assert (kind, line) in names[name], (file.name, name)
    classes_and_functions = {
        (name, kind, line)
        for name, places in names.items()
        for kind, line in places
        if kind in {"class", "function", "method"}
    }
    assert classes_and_functions == expected
    # Everything else is bound by an assignment, an option or an attribute of the source.
    tree = ast.parse(text)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    for name, places in names.items():
        for kind, _ in places - {(kind, line) for n, kind, line in expected if n == name}:
            known = strings if kind == "option" else bound
            assert bare(name) in known or name in known, (file.name, name, kind)
    return len(expected)


@needs_parsers
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ctags") is None, reason="needs universal-ctags")
def test_headers_of_torch_have_the_names_that_ctags_finds(tmp_path: Path) -> None:
    root = TORCH / "include" / "c10"
    made = make(root, tmp_path)
    assert made.files > 200
    assert made.dead_links == ()
    assert dead_in(tmp_path) == []
    found: list[tuple[str, str, str, int, set[str]]] = []
    for entry in walk(root).entries:
        facts, _ = extract(root, entry)
        ours: dict[tuple[str, int], set[str]] = {}
        for symbol in facts.symbols:
            key = (bare(symbol.name).replace(" ", ""), symbol.line)
            ours.setdefault(key, set()).add(symbol.kind)
        for name, kind, line in tags_of(root / entry.path):
            found.append((entry.path, name, kind, line, ours.get((name, line), set())))
    sample = random.Random(21).sample(found, SAMPLED)
    missed = [each for each in sample if not each[4]]
    wrong = [each for each in sample if each[4] and not each[4] & KINDS[each[2]]]
    assert wrong == []
    assert len(missed) <= MISSED_AT_MOST * SAMPLED, missed


def tags_of(file: Path) -> list[tuple[str, str, int]]:
    """What ctags finds, without the calls of macros that it takes for declarations."""
    options = ["--output-format=json", "--fields=+nKz", "--kinds-C++=+p", "--language-force=C++"]
    done = subprocess.run(
        ["ctags", *options, "-f", "-", str(file)], capture_output=True, text=True, check=True
    )
    found: list[tuple[str, str, int]] = []
    for row in map(json.loads, done.stdout.splitlines()):
        name, kind = row["name"], row.get("kind")
        is_local = row.get("scopeKind") == "function" or name.startswith("__anon")
        is_macro_call = re.fullmatch(r"[A-Z0-9]+_\w+", name) and kind not in {"macro", "enumerator"}
        if kind in KINDS and not is_local and not is_macro_call:
            found.append((name.replace(" ", ""), kind, row["line"]))
    return found
