"""The source of a file, with links from names to their definitions."""

from __future__ import annotations

import re

from adjoint.atlas.document import Link, Listing, docs_page, name_anchor
from adjoint.atlas.facts import Use
from adjoint.atlas.subject import Subject


def listing(subject: Subject) -> Listing:
    """Every line of the source."""
    text = subject.text.removesuffix("\n")
    uses: dict[int, list[Use]] = {}
    for use in subject.facts.uses:
        uses.setdefault(use.line, []).append(use)
    lines = text.split("\n")
    return Listing(
        tuple(
            _linked(subject, line, uses[number]) if number in uses else (line,) if line else ()
            for number, line in enumerate(lines, 1)
        )
    )


def _linked(subject: Subject, line: str, uses: list[Use]) -> tuple[str | Link, ...]:
    pieces: list[str | Link] = []
    done = 0
    for use in uses:
        link = _link(subject, line, use) if use.column >= done else None
        if link is not None:
            pieces += [line[done : use.column], link]
            done = use.column + len(link.text)
    return tuple(piece for piece in (*pieces, line[done:]) if piece)


def _link(subject: Subject, line: str, use: Use) -> Link | None:
    """The part of a name that has a meaning, as a link to it."""
    meaning = subject.references.meanings.get(use.name)
    if meaning is None:
        return None
    path, name, parts = meaning
    written = line[use.column : use.column + use.length]
    pieces = re.split(r"(\.|::)", written)
    asked = re.split(r"\.|::", use.name)
    if len(pieces[::2]) != len(asked) or (parts == 1 and pieces[0] != asked[0]):
        return None  # It runs over several lines, or only the class of `self` is known.
    text = "".join(pieces[: 2 * parts - 1])
    if path not in subject.documented or not text:
        return None
    return Link(text, docs_page(path), name_anchor(name) if name else "")
