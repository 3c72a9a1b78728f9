"""Which files of the tree an import or include means, by the rules of each language."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Iterable
from pathlib import Path

from adjoint.atlas.languages import C_FAMILY, language_of

_SCRIPTS = (".ts", ".tsx", ".mts", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", ".json")
_WEB = frozenset({"JavaScript", "TypeScript", "TSX"})


class Modules:
    """The files of a tree, by the names that other files ask for them."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self.python = _python_names(self.paths, _enclosing_package(root))
        self.by_name: dict[str, list[str]] = {}
        self.by_folder: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            self.by_name.setdefault(posixpath.basename(path), []).append(path)
            self.by_folder.setdefault(posixpath.dirname(path), []).append(path)
        self.beside = {folder: _children(folder, self.by_folder) for folder in self.by_folder}
        self.module_of = {path: name for name, path in reversed(self.python.items())}

    def resolve(self, path: str, module: str) -> tuple[str, ...]:
        """The files that `module`, as the file at `path` writes it, stands for."""
        language = language_of(path)
        if language == "Python":
            found = self._python(path, module)
        elif language in C_FAMILY:
            found = self._included(path, module)
        elif language in _WEB:
            found = self._script(path, module)
        elif language == "Rust":
            found = self._rust(path, module)
        else:
            return self._package(module) if language == "Go" else ()
        return () if found is None else (found,)

    def _python(self, path: str, module: str) -> str | None:
        if not module.startswith("."):
            found = self.python.get(module)
            if found is None and module.partition(".")[0] in self.beside[posixpath.dirname(path)]:
                beside = posixpath.join(posixpath.dirname(path), module.replace(".", "/"))
                found = self._python_file(beside)
            return found
        bare = module.lstrip(".")
        folder = posixpath.dirname(path)
        for _ in range(len(module) - len(bare) - 1):
            folder = posixpath.dirname(folder)
        return self._python_file(posixpath.join(folder, bare.replace(".", "/")))

    def _python_file(self, stem: str) -> str | None:
        stem = stem.rstrip("/")
        inside = f"{stem}/__init__" if stem else "__init__"
        candidates = (f"{stem}.py", f"{inside}.py", f"{stem}.pyi", f"{inside}.pyi")
        return next((each for each in candidates if each in self.paths), None)

    def submodule(self, package: str, name: str) -> str | None:
        """The module `name` of the Python package whose `__init__` is at `package`."""
        if posixpath.basename(package) not in {"__init__.py", "__init__.pyi"}:
            return None
        return self._python_file(posixpath.join(posixpath.dirname(package), name))

    def _included(self, path: str, module: str) -> str | None:
        """A header: beside the file, or at the end of some path, the nearest to the file."""
        name = module.strip('"<>')
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if module.startswith('"') and beside in self.paths:
            return beside
        ends = [
            each
            for each in self.by_name.get(posixpath.basename(name), ())
            if each == name or each.endswith(f"/{name}")
        ]
        return min(ends, key=lambda each: (-_common(each, path), len(each), each), default=None)

    def _script(self, path: str, module: str) -> str | None:
        if not module.startswith("."):
            return None
        stem = posixpath.normpath(posixpath.join(posixpath.dirname(path), module))
        bare = posixpath.splitext(stem)[0]
        candidates = [stem, *(stem + end for end in _SCRIPTS), *(bare + end for end in _SCRIPTS)]
        candidates += [f"{stem}/index{end}" for end in _SCRIPTS]
        return next((each for each in candidates if each in self.paths), None)

    def _rust(self, path: str, module: str) -> str | None:
        parts = module.split("::")
        folder = posixpath.dirname(path)
        stem = posixpath.splitext(posixpath.basename(path))[0]
        inside = folder if stem in {"mod", "lib", "main"} else posixpath.join(folder, stem)
        if parts[0] == "crate":
            place = path.split("/")
            source = len(place) - 1 - place[::-1].index("src") if "src" in place else 0
            inside, parts = "/".join(place[: source + 1]) if "src" in place else "", parts[1:]
        while parts and parts[0] in {"super", "self"}:
            inside = posixpath.dirname(inside) if parts[0] == "super" else inside
            parts = parts[1:]
        stem = posixpath.join(inside, *parts).rstrip("/")
        ends = (f"{stem}.rs", f"{stem}/mod.rs", f"{stem}/lib.rs", f"{stem}/main.rs")
        return next((each for each in ends if each in self.paths), None)

    def _package(self, module: str) -> tuple[str, ...]:
        """The files of Go's package: the folder that its import path ends in."""
        parts = module.split("/")
        for start in range(len(parts)):
            files = self.by_folder.get("/".join(parts[start:]), ())
            found = tuple(each for each in files if each.endswith(".go"))
            if found:
                return found
        return ()


def package_of(path: str, module: str) -> str:
    """The package outside of the tree that a module, as it is written, belongs to."""
    language = language_of(path)
    if language == "Python":
        return module.lstrip(".").partition(".")[0]
    if language in _WEB:
        parts = module.split("/")
        return "/".join(parts[:2]) if module.startswith("@") else parts[0]
    if language == "Rust":
        return module.partition("::")[0]
    return module


def is_standard(path: str, package: str) -> bool:
    """Whether a package belongs to the standard library of Python."""
    return language_of(path) == "Python" and package in sys.stdlib_module_names


def _enclosing_package(root: Path) -> str:
    """The dotted name of the package that the tree itself is; empty if it is none."""
    parts: list[str] = []
    while os.path.exists(root / "__init__.py") and root.name:
        parts.append(root.name)
        root = root.parent
    return ".".join(reversed(parts))


def _python_names(paths: frozenset[str], prefix: str) -> dict[str, str]:
    """Each module by its name from the tree's root, and from the package that it is in."""
    found: dict[str, str] = {}
    modules = sorted(path for path in paths if path.endswith((".py", ".pyi")))
    # A module before its stub, and names from the root before those from a package.
    modules.sort(key=lambda path: path.endswith(".pyi"))
    for path in modules:
        found.setdefault(".".join(_named(path, prefix)), path)
    for path in modules:
        folder = posixpath.dirname(path)
        while folder and f"{folder}/__init__.py" in paths:
            folder = posixpath.dirname(folder)
        inner = path[len(folder) + 1 :] if folder else path
        if inner != path and "/" in inner:
            found.setdefault(".".join(_named(inner, "")), path)
    found.pop("", None)
    return found


def _children(folder: str, by_folder: dict[str, list[str]]) -> frozenset[str]:
    """The first names of modules that a script in a folder may import from beside it."""
    found = {posixpath.basename(path).partition(".")[0] for path in by_folder[folder]}
    inside = f"{folder}/" if folder else ""
    found |= {
        each[len(inside) :].partition("/")[0] for each in by_folder if each.startswith(inside)
    }
    return frozenset(found)


def _named(path: str, prefix: str) -> list[str]:
    parts = path.rpartition(".")[0].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return [prefix, *parts] if prefix else parts


def _common(one: str, other: str) -> int:
    """How many folders two paths share."""
    shared = 0
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right:
            break
        shared += 1
    return shared
