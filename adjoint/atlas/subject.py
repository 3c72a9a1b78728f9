"""One file as its pages see it: its facts, how the tree refers to it, and which pages exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from adjoint.atlas.document import (
    Code,
    Inline,
    Inlines,
    Link,
    docs_page,
    line_anchor,
    name_anchor,
    prose,
)
from adjoint.atlas.facts import Facts, Symbol
from adjoint.atlas.references import References
from adjoint.atlas.summaries import numbered


@dataclass(frozen=True, eq=False)
class Subject:
    """A file that pages are made of."""

    path: str
    facts: Facts
    text: str
    references: References
    documented: frozenset[str]
    """The files that have pages; names in other files are not links."""

    @cached_property
    def symbols(self) -> list[tuple[str, Symbol]]:
        """The names that the file defines; no two the same."""
        return numbered(self.facts.symbols)

    @cached_property
    def own_lines(self) -> dict[str, list[int]]:
        """The lines of this file that use each of its own names."""
        found: dict[str, list[int]] = {}
        for use in self.facts.uses:
            path, name, _ = self.references.meanings.get(use.name, ("", "", 0))
            if path == self.path and name:
                lines = found.setdefault(name, [])
                if not lines or lines[-1] != use.line:
                    lines.append(use.line)
        return found

    @property
    def has_source(self) -> bool:
        return bool(self.text)

    def line(self, line: int, text: str = "", path: str = "") -> Inline:
        """A link to a line of this file, or of another."""
        path = path or self.path
        shown = text or str(line)
        is_shown = self.has_source if path == self.path else path in self.documented
        return Link(shown, docs_page(path), line_anchor(line)) if is_shown else shown

    def lines(self, lines: Iterable[int], path: str = "", most: int = 20) -> Inlines:
        """Links to several lines."""
        lines = list(lines)
        found: list[Inline] = []
        for line in lines[:most]:
            found += [", ", self.line(line, path=path)]
        rest = (f" and {len(lines) - most} more",) if len(lines) > most else ()
        return (*found[1:], *rest)

    def file(self, path: str) -> Inline:
        """A link to the page of a file."""
        if path in self.documented:
            return Link(path, docs_page(path), is_code=True)
        return Code(path)

    def name(self, path: str, name: str, text: str = "") -> Inline:
        """A link to the definition of a name."""
        shown = text or name.partition("#")[0]
        if path in self.documented:
            return Link(shown, docs_page(path), name_anchor(name), is_code=True)
        return Code(shown)

    def prose(self, text: str) -> Inlines:
        """A sentence in which names between backticks are code, and links where they are known."""
        return self.linked(prose(text))

    def linked(self, content: Inlines) -> Inlines:
        """The same text, in which code that names something known is a link to it."""
        return tuple(self._spoken(p.text) if isinstance(p, Code) else p for p in content)

    def _spoken(self, name: str) -> Inline:
        if name in self._own_names:
            return self.name(self.path, name)
        path, meant, parts = self.references.meanings.get(name, ("", "", 0))
        is_whole = parts == name.count(".") + 1
        return self.name(path, meant, name) if meant and is_whole else Code(name)

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.symbols)


def grouped(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The lines of each key, in order."""
    found: dict[str, list[int]] = {}
    for key, line in pairs:
        found.setdefault(key, []).append(line)
    return found


def joined(pieces: Iterable[Inline], between: str = ", ") -> Inlines:
    """The pieces with something between each two."""
    found: list[Inline] = []
    for piece in pieces:
        found += [between, piece]
    return tuple(found[1:])
