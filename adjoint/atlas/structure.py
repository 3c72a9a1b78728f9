"""The structure of a file: every name that it defines, with signature, docstring and lines."""

from __future__ import annotations

from collections.abc import Iterator

from adjoint.atlas.document import (
    Anchor,
    Block,
    Code,
    Heading,
    Inlines,
    Paragraph,
    Quoted,
    Table,
    name_anchor,
)
from adjoint.atlas.facts import Symbol, owner
from adjoint.atlas.subject import Subject
from adjoint.quantities import counted

_LARGE = frozenset({"class", "struct", "union", "interface", "trait", "function", "method"})
"""Kinds that have a heading of their own; the others are rows of a table."""


def structure(subject: Subject) -> Iterator[Block]:
    """The names of a file in the order of their lines; short ones first, in a table."""
    owners = {name for name, symbol in subject.symbols if symbol.kind in _LARGE}
    members: dict[str, list[tuple[str, Symbol]]] = {}
    for name, symbol in subject.symbols:
        if symbol.kind not in _LARGE:
            holder = _owner(name)
            members.setdefault(holder if holder in owners else "", []).append((name, symbol))
    yield from _table(subject, members.get("", []))
    for name, symbol in subject.symbols:
        if symbol.kind in _LARGE:
            level = 4 if _owner(name) in owners else 3
            yield Heading(level, (Code(name.partition("#")[0]),), name_anchor(name))
            yield Paragraph((Code(symbol.signature),))
            yield Paragraph(_measures(subject, name, symbol))
            yield from _documentation(subject, symbol.doc)
            yield from _table(subject, members.get(name, []))


def _owner(name: str) -> str:
    return owner(name.partition("#")[0])


def _table(subject: Subject, members: list[tuple[str, Symbol]]) -> Iterator[Block]:
    if members:
        rows = tuple(_row(subject, name, symbol) for name, symbol in members)
        yield Table(("Name", "Kind", "Line", "Definition", "About"), rows)


def _row(subject: Subject, name: str, symbol: Symbol) -> tuple[Inlines, ...]:
    shown = name.partition("#")[0]
    return (
        (Anchor(name_anchor(name)), Code(shown)),
        (symbol.kind,),
        (subject.line(symbol.line),),
        (Code(symbol.signature),) if symbol.signature != shown else (),
        subject.prose(" ".join(symbol.doc.split())),
    )


def _measures(subject: Subject, name: str, symbol: Symbol) -> Inlines:
    """Kind, lines and length, nesting, and how often it is used."""
    lines = f"{symbol.line}-{symbol.end}" if symbol.end > symbol.line else str(symbol.line)
    found: list[str] = [f" ({counted(symbol.length, 'line')})"]
    if symbol.nesting:
        found.append(f", nesting {symbol.nesting}")
    users = len(subject.references.users.get(name, ()))
    if users:
        found.append(f", used in {counted(users, 'other file')}")
    word = "Line " if symbol.end == symbol.line else "Lines "
    return (f"{symbol.kind.capitalize()}. {word}", subject.line(symbol.line, lines), *found, ".")


def _documentation(subject: Subject, doc: str) -> Iterator[Block]:
    """A docstring: prose where it is one paragraph, as it is laid out where it is more."""
    if not doc:
        return
    if "\n\n" in doc or "\n " in doc:
        yield Quoted(doc)
    else:
        yield Paragraph(subject.prose(" ".join(doc.split())))
