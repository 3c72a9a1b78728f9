"""Our own developer documentation, which is the atlas of this repository (`make docs`).

Nothing of it is kept in the repository: it is built from the source, so it is as fresh as that.
These tests build it and check that it is whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.atlas.linkcheck import dead_in
from adjoint.atlas.making import make
from tests.atlas.test_real_trees import check_names
from tests.atlas_trees import needs_parsers

ROOT = Path(__file__).resolve().parent.parent.parent


def check_pages(root: Path, out: Path) -> None:
    """Every module has its pages, says what it is for, and has all of its names in the index."""
    made = make(root, out, jobs=1)
    assert made.dead_links == ()
    images = {path: said for path, said in made.problems.items() if path.endswith(".png")}
    assert made.problems == images
    assert set(images.values()) <= {("The file is binary.",)}
    assert dead_in(out) == []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if path.startswith((".", "build/")):
            continue  # An environment, or what was built: not of the tree.
        page = (out / f"{path}_docs.md").read_text()
        if file.is_relative_to(ROOT / "adjoint"):
            purpose = page.partition("</a>Purpose")[2].partition("\n## ")[0]
            assert "does not say what it is for" not in purpose, path
        check_names(file, out / f"{path}_kw.md")


@needs_parsers
@pytest.mark.parametrize("package", ["graph", "atlas"])
def test_packages_have_whole_pages(package: str, tmp_path: Path) -> None:
    check_pages(ROOT / "adjoint" / package, tmp_path)


@needs_parsers
@pytest.mark.slow
def test_the_developer_documentation_is_whole(tmp_path: Path) -> None:
    check_pages(ROOT, tmp_path)
    page = (tmp_path / "adjoint" / "compiler.py_docs.md").read_text()
    assert "is this sentence. ([ARCHITECTURE.md:" in page
    assert "Import rules: layer " in page
    assert "tests/test_compiler.py" in page


def test_the_documentation_can_be_built_by_one_command() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs: venv\n")[2].partition("\n\n")[0]
    assert "-m adjoint atlas . --out build/docs --format html" in recipe
    assert "atlas/assets/*" in (ROOT / "pyproject.toml").read_text()
