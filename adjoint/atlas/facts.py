"""What is known of one source file, as plain data.

Every fact is a named tuple of strings, numbers and tuples, so that JSON holds it as it is.  Facts
are of one file alone: they follow from its bytes, and are kept by the hash of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adjoint.open_types import FromText

# Kind of name: the heading that the index lists it under, in the order of the index.
HEADINGS = {
    "class": "Classes and structs",
    "struct": "Classes and structs",
    "union": "Classes and structs",
    "interface": "Types",
    "trait": "Types",
    "enum": "Types",
    "type": "Types",
    "function": "Functions and methods",
    "method": "Functions and methods",
    "constant": "Constants",
    "variable": "Variables",
    "field": "Fields",
    "macro": "Macros",
    "namespace": "Namespaces",
    "option": "Options",
}


class Symbol(NamedTuple):
    """A name that a file defines."""

    name: str
    """Qualified within its file: `Class.method`, `space::Class::method`."""
    kind: str
    """A key of `HEADINGS`."""
    line: int
    end: int
    signature: str
    doc: str
    nesting: int
    """The depth of the deepest block inside."""

    @property
    def length(self) -> int:
        return self.end - self.line + 1


class Import(NamedTuple):
    """A module, header or package that a file asks for."""

    module: str
    """As it is written: `..tree`, `numpy.linalg`, `"vector.h"`, `./names.js`."""
    name: str
    """What is taken from the module; empty for the module itself, `*` for everything."""
    bound: str
    """The name in this file; empty if there is none."""
    line: int


class Use(NamedTuple):
    """A place that names something which this file defines or imports."""

    name: str
    """Dotted from a name of the module's scope: `Class.method`, `alias.function`."""
    line: int
    column: int
    """In characters, from 0."""
    length: int
    """In characters, of the name as it is written."""
    call: int
    """The length of the whole call in characters; 0 if it is not called."""


class Note(NamedTuple):
    """A pattern, or something that matters to speed or safety, and the line that shows it."""

    section: str
    """`patterns`, `performance` or `safety`."""
    what: str
    line: int


class Message(NamedTuple):
    """The text of an error."""

    text: str
    line: int


class Heading(NamedTuple):
    """A heading of a text."""

    text: str
    level: int
    line: int


class Mention(NamedTuple):
    """A name or path in a document, marked as code, with the sentence around it."""

    name: str
    sentence: str
    line: int
    leads: bool
    """Whether it stands in the first cell of a row of a table, which is then about it."""


class Facts(NamedTuple):
    """All that is known of one file."""

    language: str
    size: int
    lines: int
    licence: str
    purpose: str
    problems: tuple[str, ...]
    """Why a part of the file could not be read or parsed."""
    symbols: tuple[Symbol, ...] = ()
    imports: tuple[Import, ...] = ()
    uses: tuple[Use, ...] = ()
    notes: tuple[Note, ...] = ()
    messages: tuple[Message, ...] = ()
    headings: tuple[Heading, ...] = ()
    mentions: tuple[Mention, ...] = ()
    is_script: bool = False
    """Whether it runs as a program."""


_PARTS: dict[str, Callable[..., object]] = {
    "symbols": Symbol,
    "imports": Import,
    "uses": Use,
    "notes": Note,
    "messages": Message,
    "headings": Heading,
    "mentions": Mention,
}


def from_json(row: list[FromText]) -> Facts:
    """The facts that were written to JSON, where named tuples are lists."""
    values = dict(zip(Facts._fields, row, strict=True))
    for name, part in _PARTS.items():
        values[name] = tuple(part(*each) for each in values[name])
    values["problems"] = tuple(values["problems"])
    return Facts(**values)


def bare(name: str) -> str:
    """The last part of a qualified name."""
    return name.rpartition("::" if "::" in name else ".")[2]


def owner(name: str) -> str:
    """A qualified name without its last part."""
    return name.rpartition("::" if "::" in name else ".")[0]
