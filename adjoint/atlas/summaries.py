"""What other files need to know of a file: a short form of its facts, kept for the whole tree.

A run reads the summaries of all files and the facts of those whose pages are written again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from adjoint.atlas.facts import Facts, Import, Mention, Symbol
from adjoint.atlas.shortening import MAX_LINE_CHARACTERS, shortened
from adjoint.open_types import FromText

MAX_CALLS = 2
"""How many call sites of one name a file is remembered for; its shortest."""

MAX_DOC_CHARACTERS = 200
MAX_PURPOSE_CHARACTERS = 2000


class Definition(NamedTuple):
    """A name that a file defines, in short."""

    kind: str
    line: int
    end: int
    doc: str
    """Its first sentence."""
    bases: list[str]
    """Of a class, what it derives from."""


class Summary(NamedTuple):
    """One file, in short."""

    path: str
    key: str
    """Of its facts."""
    language: str
    size: int
    lines: int
    purpose: str
    problems: tuple[str, ...]
    definitions: dict[str, Definition]
    """The first of each name; `#2` and so on are added to the names of the others."""
    imports: tuple[Import, ...]
    uses: dict[str, list[int]]
    """The lines of each name that is used."""
    calls: dict[str, list[tuple[int, int, str]]]
    """Line, length and text of the shortest calls of each name."""
    mentions: tuple[Mention, ...]


def summarize(path: str, key: str, facts: Facts, text: str) -> Summary:
    """The short form of a file's facts, with lines of its text that call something."""
    source = text.split("\n")
    uses: dict[str, list[int]] = {}
    calls: dict[str, list[tuple[int, int]]] = {}
    for use in facts.uses:
        lines = uses.setdefault(use.name, [])
        if not lines or lines[-1] != use.line:
            lines.append(use.line)
        if use.call:
            calls.setdefault(use.name, []).append((use.call, use.line))
    shortest = {
        name: [
            (line, length, shortened(source[line - 1], MAX_LINE_CHARACTERS))
            for length, line in sorted(sites)[:MAX_CALLS]
        ]
        for name, sites in calls.items()
    }
    return Summary(
        path=path,
        key=key,
        language=facts.language,
        size=facts.size,
        lines=facts.lines,
        purpose=facts.purpose[:MAX_PURPOSE_CHARACTERS],
        problems=facts.problems,
        definitions={
            name: Definition(
                symbol.kind, symbol.line, symbol.end, first_sentence(symbol.doc), _bases(symbol)
            )
            for name, symbol in numbered(facts.symbols)
        },
        imports=facts.imports,
        uses=uses,
        calls=shortest,
        mentions=facts.mentions,
    )


def from_json(row: list[FromText]) -> Summary:
    """The summary that was written to JSON."""
    summary = Summary(*row)
    return summary._replace(
        definitions={name: Definition(*each) for name, each in summary.definitions.items()},
        imports=tuple(Import(*each) for each in summary.imports),
        mentions=tuple(Mention(*each) for each in summary.mentions),
        problems=tuple(summary.problems),
    )


def numbered(symbols: Iterable[Symbol]) -> list[tuple[str, Symbol]]:
    """Symbols with names that no two share: the second of a name is `name#2`."""
    seen: dict[str, int] = {}
    found: list[tuple[str, Symbol]] = []
    for symbol in symbols:
        count = seen[symbol.name] = seen.get(symbol.name, 0) + 1
        found.append((symbol.name if count == 1 else f"{symbol.name}#{count}", symbol))
    return found


def first_sentence(text: str) -> str:
    """The first sentence of a text, or its first paragraph where that has none."""
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    paragraph = " ".join(paragraph.split())
    end = re.search(r"[.!?](?=\s+[A-Z`\"'(])", paragraph)
    sentence = paragraph[: end.end()] if end else paragraph
    if len(sentence) <= MAX_DOC_CHARACTERS:
        return sentence
    return sentence[: MAX_DOC_CHARACTERS - 1].rstrip() + "…"


def _bases(symbol: Symbol) -> list[str]:
    """The names in the parentheses of a class of Python."""
    inside = re.match(r"class \w+\((.*)\)$", symbol.signature)
    if symbol.kind != "class" or inside is None:
        return []
    while (flat := re.sub(r"[\[(][^\[\]()]*[\])]", "", inside.group(1))) != inside.group(1):
        inside = re.match(r"(.*)", flat)
        assert inside is not None
    parts = (part.strip() for part in inside.group(1).split(","))
    return [part for part in parts if part and "=" not in part]
