"""What a name in one file means: the file, and the name in it, that define it."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Mapping
from typing import NamedTuple

from adjoint.atlas.facts import Import, bare
from adjoint.atlas.languages import C_FAMILY
from adjoint.atlas.modules import Modules
from adjoint.atlas.summaries import Summary

MAX_STEPS = 12
"""How many re-exports and base classes are followed to find where a name is defined."""

_JOINT = re.compile(r"\.|::")

_HIDDEN = frozenset({"method", "field", "option", "namespace"})
"""Kinds that a bare name never means in the C family."""


class Meaning(NamedTuple):
    """Where a name is defined."""

    path: str
    name: str
    """Empty for the module itself."""
    parts: int
    """How many parts of the name, as it was asked for, this is the meaning of."""


class Bound(NamedTuple):
    """What an import stands for."""

    files: tuple[str, ...]
    """Of the tree; none if it means something outside of it."""
    names: tuple[str, ...]
    """What is taken from the files; nothing if they themselves are meant."""


class Names:
    """The names of a whole tree."""

    def __init__(self, summaries: Mapping[str, Summary], modules: Modules) -> None:
        self.summaries = summaries
        self.modules = modules
        self.bound_by = functools.cache(self._bound_by)
        self._bindings = functools.cache(self._bindings_of)
        self._opened = functools.cache(self._opened_by)
        self._first = functools.cache(self._first_parts)
        self._bare: dict[str, list[tuple[str, str]]] = {}
        for path, summary in summaries.items():
            if summary.language in C_FAMILY:
                for name, definition in summary.definitions.items():
                    if definition.kind not in {"field", "option", "namespace"}:
                        self._bare.setdefault(bare(name), []).append((path, name))
        self._member = functools.cache(self._find_member)
        self.closure = functools.cache(self._closure)

    def _bound_by(self, path: str) -> list[tuple[Import, Bound]]:
        """Every import of a file, and what it stands for."""
        return [(each, self._bound(path, each)) for each in self.summaries[path].imports]

    def _opened_by(self, path: str) -> tuple[str, ...]:
        """The files all of whose names a file has."""
        stars = (bound for each, bound in self.bound_by(path) if each.name == "*")
        return tuple(dict.fromkeys(file for bound in stars for file in bound.files))

    def _first_parts(self, path: str) -> frozenset[str]:
        """The first parts of the names that a file defines."""
        names = self.summaries[path].definitions
        return frozenset(_JOINT.split(name, maxsplit=1)[0] for name in names)

    def _bound(self, path: str, each: Import) -> Bound:
        """What an import stands for: a module, or a name of one."""
        if each.name in {"", "*", "default"}:
            return Bound(self.modules.resolve(path, each.module), ())
        joint = "" if each.module.endswith(".") else "::" if path.endswith(".rs") else "."
        inner = self.modules.resolve(path, f"{each.module}{joint}{each.name}")
        if inner:
            return Bound(inner, ())
        return Bound(self.modules.resolve(path, each.module), (each.name,))

    def _bindings_of(self, path: str) -> dict[str, list[Bound]]:
        """What each name that a file imports stands for; `import a.b` binds `a` as well."""
        found: dict[str, list[Bound]] = {}
        for each, bound in self.bound_by(path):
            if not each.bound:
                continue
            found.setdefault(each.bound, []).append(bound)
            first = each.bound.partition(".")[0]
            if first != each.bound:
                whole = Bound(self.modules.resolve(path, first), ())
                found.setdefault(first, []).append(whole)
        return found

    def meaning(self, path: str, name: str) -> Meaning | None:
        """What `name` means in the file at `path`; None if nothing in the tree defines it."""
        language = self.summaries[path].language
        if language in C_FAMILY:
            return self._included(path, name)
        parts = tuple(_JOINT.split(name))
        if parts[0] not in self._first(path) and parts[0] not in self._bindings(path):
            if language == "Rust":
                return self._path(path, parts)
            if language == "Go":
                return self._beside(path, parts)
            return self._from_everything(path, parts, 0)
        found = self._find_member(path, parts, 0)
        return self._path(path, parts) if found is None and language == "Rust" else found

    def _find_member(self, path: str, parts: tuple[str, ...], steps: int) -> Meaning | None:
        """What a chain of names means inside the module at `path`."""
        if not parts:
            return Meaning(path, "", 0)
        if steps > MAX_STEPS or path not in self.summaries:
            return None
        return (
            self._defined(path, parts, steps)
            or self._imported(path, parts, steps)
            or self._inside(path, parts, steps)
            or self._from_everything(path, parts, steps)
        )

    def _defined(self, path: str, parts: tuple[str, ...], steps: int) -> Meaning | None:
        if parts[0] not in self._first(path):
            return None
        definitions = self.summaries[path].definitions
        joint = "::" if self.summaries[path].language == "Rust" else "."
        for count in range(len(parts), 0, -1):
            name = joint.join(parts[:count])
            if name not in definitions:
                continue
            if count < len(parts) and definitions[name].bases:
                inherited = self._inherited(path, name, parts[count:], steps)
                if inherited is not None:
                    return inherited._replace(parts=inherited.parts + count)
            return Meaning(path, name, count)
        return None

    def _inherited(self, path: str, name: str, rest: tuple[str, ...], steps: int) -> Meaning | None:
        """A member of a class that one of its bases defines."""
        for base in self.summaries[path].definitions[name].bases:
            found = self._member(path, (*base.split("."), rest[0]), steps + 1)
            if found is not None and found.parts == base.count(".") + 2:
                return found._replace(parts=1)
        return None

    def _imported(self, path: str, parts: tuple[str, ...], steps: int) -> Meaning | None:
        bindings = self._bindings(path)
        if parts[0] not in bindings:
            return None
        for count in range(len(parts), 0, -1):
            name = ".".join(parts[:count]) if count > 1 else parts[0]
            for bound in bindings.get(name, ()):
                asked = bound.names + parts[count:]
                for file in bound.files:
                    found = self._member(file, asked, steps + 1)
                    if found is not None:
                        return found._replace(parts=found.parts - len(bound.names) + count)
        return None

    def _inside(self, path: str, parts: tuple[str, ...], steps: int) -> Meaning | None:
        """A module of a package, named as an attribute of it."""
        inner = self.modules.submodule(path, parts[0]) if steps else None
        found = self._member(inner, parts[1:], steps + 1) if inner is not None else None
        return None if found is None else found._replace(parts=found.parts + 1)

    def _from_everything(self, path: str, parts: tuple[str, ...], steps: int) -> Meaning | None:
        for file in self._opened(path):
            found = self._member(file, parts, steps + 1) if file != path else None
            if found is not None and found.name:
                return found
        return None

    def _path(self, path: str, parts: tuple[str, ...]) -> Meaning | None:
        """A path of Rust that names its modules in full."""
        for count in range(len(parts) - 1, 0, -1):
            for file in self.modules.resolve(path, "::".join(parts[:count])):
                found = self._member(file, parts[count:], 1)
                if found is not None:
                    return found._replace(parts=found.parts + count)
        return None

    def _beside(self, path: str, parts: tuple[str, ...]) -> Meaning | None:
        """A name that another file of the same package of Go defines."""
        for file in self.modules.by_folder[posixpath.dirname(path)]:
            if file != path and file in self.summaries and file.endswith(".go"):
                found = self._defined(file, parts, 0)
                if found is not None:
                    return found
        return None

    def _included(self, path: str, name: str) -> Meaning | None:
        """What a name of the C family means: something that an included file defines."""
        parts = name.split("::")
        visible = self.closure(path)
        found = [
            (file, defined)
            for file, defined in self._bare.get(parts[-1], ())
            if (file == path or file in visible) and self._may_mean(file, defined, name)
        ]
        own = [each for each in found if each[0] == path]
        found = own or found
        if len({defined for _, defined in found}) != 1:
            return None
        file, defined = min(found)
        return Meaning(file, defined, len(parts))

    def _may_mean(self, path: str, defined: str, name: str) -> bool:
        if "::" in name:
            return defined == name or defined.endswith(f"::{name}")
        return self.summaries[path].definitions[defined].kind not in _HIDDEN

    def _closure(self, path: str) -> frozenset[str]:
        """All files that a file includes, at any depth."""
        found: set[str] = set()
        pending = [path]
        while pending:
            for each in self._opened(pending.pop()):
                if each not in found:
                    found.add(each)
                    pending.append(each)
        return frozenset(found)
