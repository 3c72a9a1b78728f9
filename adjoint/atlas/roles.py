"""What documents say of files and names, and the layers that import rules declare."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from adjoint.atlas.extracting import extract
from adjoint.atlas.facts import Mention, bare
from adjoint.atlas.languages import is_test
from adjoint.atlas.modules import Modules
from adjoint.atlas.summaries import Summary
from adjoint.atlas.tree import Entry
from adjoint.open_types import FromText

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_GUIDES = frozenset({"readme", "architecture", "contributing", "design", "overview"})
_RULES = "pyproject.toml"


class Statement(NamedTuple):
    """A sentence of a document about a file or a name."""

    document: str
    """Its path; one that starts with `../` lies outside of the tree."""
    line: int
    sentence: str


class Roles:
    """What the documents of a tree say of its files and names."""

    def __init__(self, root: Path, summaries: Mapping[str, Summary], modules: Modules) -> None:
        self.modules = modules
        self.summaries = summaries
        self.of_file: dict[str, list[Statement]] = {}
        self.of_name: dict[tuple[str, str], list[Statement]] = {}
        self.of_folder: dict[str, list[Statement]] = {}
        self.roles: dict[str, list[Statement]] = {}
        mentions = list(_mentions(root, summaries))
        self.definers = _definers(summaries, {_name_of(mention) for _, mention in mentions})
        for document, mention in mentions:
            self._state(document, mention)
        self.layers = _layers(root)

    def role(self, path: str) -> list[Statement]:
        """The sentences of a guide about a file, or else about its folder, nearest first."""
        if path in self.roles:
            return self.roles[path]
        folder = posixpath.dirname(path)
        while folder:
            if folder in self.of_folder:
                return self.of_folder[folder][:1]
            folder = posixpath.dirname(folder)
        return []

    def layer(self, path: str) -> str:
        """The layer of a module, if import rules declare one."""
        module = self.modules.module_of.get(path, "")
        for container, layers in self.layers:
            for number, names in enumerate(layers, 1):
                for name in names:
                    full = f"{container}.{name}" if container else name
                    if module == full or module.startswith(f"{full}."):
                        beside = ", ".join(f"`{each}`" for each in names if each != name)
                        text = f"layer {number} of {len(layers)} from the top"
                        return text + (f", beside {beside}" if beside else "")
        return ""

    def _state(self, document: str, mention: Mention) -> None:
        statement = Statement(document, mention.line, mention.sentence)
        is_guide = posixpath.basename(document).partition(".")[0].lower() in _GUIDES
        if mention.name.endswith("/"):
            folder = self._folder(document, mention.name.rstrip("/"))
            if folder and is_guide:
                self.of_folder.setdefault(folder, []).append(statement)
            return
        path = self._file(document, mention)
        if path is not None:
            self.of_file.setdefault(path, []).append(statement)
            if is_guide:
                self.roles.setdefault(path, []).append(statement)
            return
        definers = self.definers.get(_name_of(mention), ())
        if len(definers) == 1:
            self.of_name.setdefault(definers[0], []).append(statement)

    def _file(self, document: str, mention: Mention) -> str | None:
        """The one file that a path, or the name of a module, stands for."""
        name = mention.name
        paths = self.modules.paths
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(document), name))
        for exact in (name, beside):
            if exact in paths:
                return exact
        if "/" in name or re.fullmatch(r"[\w-]+\.\w{1,4}", name):
            ends = list(self.modules.by_name.get(posixpath.basename(name), ()))
            found = [each for each in ends if each.endswith(f"/{name}")]
            return found[0] if len(found) == 1 else None
        if re.fullmatch(r"\w+(\.\w+)+", name):
            return self.modules.python.get(name)
        if mention.leads and name.isidentifier():
            found = [
                each for each in self.modules.by_name.get(f"{name}.py", ()) if not is_test(each)
            ]
            return found[0] if len(found) == 1 else None
        return None

    def _folder(self, document: str, name: str) -> str | None:
        known = self.modules.by_folder.keys()
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(document), name))
        for exact in (name, beside):
            if exact in known:
                return exact
        found = [each for each in known if each.endswith(f"/{name}") and not is_test(f"{each}/x")]
        return found[0] if len(found) == 1 else None


def _name_of(mention: Mention) -> str:
    """The name that a mention may mean: `name(...)` means `name`."""
    return re.sub(r"\(.*\)$", "", mention.name)


def _definers(
    summaries: Mapping[str, Summary], wanted: set[str]
) -> dict[str, list[tuple[str, str]]]:
    """The files that define each name, qualified or bare; tests define nothing to speak of."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path, summary in summaries.items() if wanted else ():
        if is_test(path):
            continue
        for name, definition in summary.definitions.items():
            if definition.kind == "option":
                continue
            if name in wanted:
                found.setdefault(name, []).append((path, name))
            last = bare(name)
            if last != name and last in wanted and definition.kind != "field":
                found.setdefault(last, []).append((path, name))
    return found


def _mentions(root: Path, summaries: Mapping[str, Summary]) -> Iterator[tuple[str, Mention]]:
    """What the documents mark as code: those of the tree, and guides in the project around it."""
    for path, summary in sorted(summaries.items()):
        for mention in summary.mentions:
            yield path, mention
    project = _project(root)
    if project is None or project == root:
        return
    up = "../" * (len(root.parts) - len(project.parts))
    for file in sorted(project.glob("*.md")):
        if file.stem.lower() in _GUIDES:
            for mention in extract(project, Entry(file.name, 0, 0))[0].mentions:
                yield up + file.name, mention


def _project(root: Path) -> Path | None:
    """The nearest folder around a tree that declares a project."""
    for folder in (root, *root.parents):
        if os.path.exists(folder / _RULES):
            return folder
        if os.path.exists(folder / ".git"):
            return folder
    return None


def _layers(root: Path) -> list[tuple[str, list[list[str]]]]:
    """The containers and layers of import-linter's contracts; names without their marks."""
    project = _project(root)
    if project is None or not os.path.exists(project / _RULES):
        return []
    try:
        rules: dict[str, FromText] = tomllib.loads((project / _RULES).read_text())
    except (OSError, ValueError):
        return []
    found: list[tuple[str, list[list[str]]]] = []
    for contract in rules.get("tool", {}).get("importlinter", {}).get("contracts", []):
        if contract.get("type") == "layers":
            layers = [[n for n in re.split(r"[\s|:()]+", row) if n] for row in contract["layers"]]
            found += [(container, layers) for container in contract.get("containers", [""])]
    return found
