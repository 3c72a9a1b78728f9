"""Small source trees, and what the atlas of them is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from adjoint.atlas.extracting import facts_of
from adjoint.atlas.facts import Facts
from adjoint.atlas.languages import language_of
from adjoint.atlas.making import Made, make
from adjoint.atlas.modules import Modules
from adjoint.atlas.names import Names
from adjoint.atlas.reading import decoded
from adjoint.atlas.references import References, references
from adjoint.atlas.resolution import resolve
from adjoint.atlas.roles import Roles
from adjoint.atlas.store import Store
from adjoint.atlas.summaries import Summary, summarize

needs_parsers = pytest.mark.skipif(
    importlib.util.find_spec("tree_sitter_cpp") is None, reason="needs adjoint[atlas]"
)

# A package, a test and a guide that speak of each other.
PACKAGE = {
    "README.md": "# Shop\n\nA shop. `shop/till.py` counts money.\n\nSee `Till.add`.\n",
    "shop/__init__.py": '"""A shop."""\n\nfrom .till import Till\n',
    "shop/till.py": '''"""Counts money."""

from shop import tax

LIMIT = 10  # euros


class Till:
    """Holds `LIMIT` euros."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, price: int) -> int:
        """Add a price, with its tax."""
        for _ in range(1):
            if price > LIMIT:
                raise ValueError(f"{price} is over {LIMIT}")
        self.total += tax.of(price)
        return self.total
''',
    "shop/tax.py": "def of(price: int) -> int:\n    return price // 5\n",
    "tests/test_till.py": (
        "from shop import Till\n\n\ndef test_add() -> None:\n    assert Till().add(5) == 1\n"
    ),
}


def planted(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder."""
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def made(root: Path, out: Path, format: str = "md", only: str | None = None) -> Made:
    """The atlas of a tree, made in this process."""
    return make(root, out, format, only, jobs=1)


def facts(text: str, language: str = "Python") -> Facts:
    """The facts of a text."""
    content = text.encode()
    return facts_of(content, decoded(content, language), language)


def kinds(text: str, language: str = "Python") -> dict[str, tuple[str, int]]:
    """Kind and line of every name that a text defines."""
    return {each.name: (each.kind, each.line) for each in facts(text, language).symbols}


def summaries_of(files: dict[str, str]) -> dict[str, Summary]:
    """The summaries of some files, each in the language that its name says."""
    return {
        path: summarize(path, f"key of {text}", facts(text, language_of(path)), text)
        for path, text in sorted(files.items())
    }


def references_of(root: Path, files: dict[str, str]) -> dict[str, References]:
    """How some files refer to each other."""
    found = summaries_of(files)
    names = Names(found, Modules(root, found))
    resolved, _ = resolve(names, {}, {})
    roles = Roles(root, found, names.modules)
    return references(found, resolved, names, roles, Store(root).history(root))
