"""The names of a file, by kind: where each is defined, explained, tested and used."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from adjoint.atlas.document import (
    Block,
    Code,
    Heading,
    Inline,
    Inlines,
    Link,
    Page,
    Paragraph,
    Table,
    crumbs,
    docs_page,
    keywords_page,
    name_anchor,
    section_anchor,
)
from adjoint.atlas.facts import HEADINGS, Symbol
from adjoint.atlas.subject import Subject, grouped, joined


def keyword_page(subject: Subject) -> Page:
    """The page of the names of one file."""
    path = subject.path
    blocks: list[Block] = [
        Heading(1, ("Names of ", Code(path)), ""),
        Paragraph((Link("The file", docs_page(path)),)),
    ]
    for title in dict.fromkeys(HEADINGS.values()):
        found = [each for each in subject.symbols if HEADINGS[each[1].kind] == title]
        if found:
            found.sort(key=lambda each: (each[0].casefold(), each[1].line))
            rows = tuple(_row(subject, name, symbol) for name, symbol in found)
            blocks.append(Heading(2, (title,), section_anchor(title)))
            blocks.append(Table(("Name", "Kind", "Lines", "Sections", "Used in"), rows))
    blocks += _imports(subject)
    blocks += _messages(subject)
    if len(blocks) == 2:
        blocks.append(Paragraph(("The file defines and imports no names.",)))
    title = f"Names of {posixpath.basename(path)}"
    return Page(keywords_page(path), title, tuple(blocks), crumbs(posixpath.dirname(path)))


def _row(subject: Subject, name: str, symbol: Symbol) -> tuple[Inlines, ...]:
    lines = dict.fromkeys([symbol.line, *subject.own_lines.get(name, ())])
    return (
        (subject.name(subject.path, name),),
        (symbol.kind,),
        subject.lines(lines),
        joined(_sections(subject, name)),
        joined(_users(subject, name)),
    )


def _sections(subject: Subject, name: str) -> Iterator[Inline]:
    """Links to the sections of the file's page that speak of a name."""
    references = subject.references
    page = docs_page(subject.path)
    yield Link("Structure", page, name_anchor(name))
    speaks = {
        "Tests": references.tests.get(name),
        "Usage": references.sites.get(name),
        "Cross-references": references.documented.get(name) or references.elsewhere.get(name),
    }
    for section, found in speaks.items():
        if found:
            yield Link(section, page, section_anchor(section))


def _users(subject: Subject, name: str) -> Iterator[Inline]:
    for path, lines in subject.references.users.get(name, ()):
        yield subject.line(lines[0], path, path)


def _imports(subject: Subject) -> Iterator[Block]:
    found: dict[tuple[str, str], list[int]] = {}
    files: dict[tuple[str, str], list[str]] = {}
    for each in subject.references.requests:
        key = (each.module, "" if each.name == "*" else each.name)
        found.setdefault(key, []).append(each.line)
        files[key] = each.files
    if found:
        rows = tuple(
            (
                (Code(module),),
                (Code(name),) if name else (),
                subject.lines(dict.fromkeys(lines)),
                (Link("Dependencies", docs_page(subject.path), section_anchor("Dependencies")),),
                joined(map(subject.file, files[module, name])),
            )
            for (module, name), lines in sorted(found.items())
        )
        title = "Imports and includes"
        yield Heading(2, (title,), section_anchor(title))
        yield Table(("Module", "Name", "Lines", "Sections", "Which is"), rows)


def _messages(subject: Subject) -> Iterator[Block]:
    messages = grouped((each.text, each.line) for each in subject.facts.messages)
    if messages:
        title = "Error messages"
        yield Heading(2, (title,), section_anchor(title))
        rows = tuple(((Code(text),), subject.lines(at)) for text, at in sorted(messages.items()))
        yield Table(("Message", "Lines"), rows)
