"""Pages of the whole tree: the index of all names, and the files that searches read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from adjoint.atlas.document import (
    Block,
    Heading,
    Inline,
    Inlines,
    Link,
    Page,
    Paragraph,
    Table,
    docs_page,
    keywords_page,
    line_anchor,
    name_anchor,
)
from adjoint.atlas.facts import bare
from adjoint.atlas.plain import digest_of, dumped
from adjoint.atlas.references import References, Tested
from adjoint.atlas.roles import Statement
from adjoint.atlas.store import Share
from adjoint.atlas.subject import joined
from adjoint.atlas.summaries import Summary

MAX_PLACES = 3
"""How many tests and documents a row of the index has; the page of the name has all."""


MAX_SEARCHED_CHARACTERS = 100
"""How much of what is said of a name the search shows."""


class Entry(NamedTuple):
    """A name of the tree."""

    sorted_by: str
    """Its last part, without regard to case."""
    name: str
    kind: str
    path: str
    line: int
    doc: str
    users: int
    tests: list[tuple[str, int, str]]
    documents: list[tuple[str, int]]


def entries(
    summary: Summary, here: References, letters: Container[str] | None = None
) -> Iterator[Entry]:
    """The names that one file defines; only those under some letters if these are given."""
    for name, each in summary.definitions.items():
        last_part = bare(name).casefold()
        if letters is None or initial(last_part) in letters:
            yield Entry(
                last_part,
                name,
                each.kind,
                summary.path,
                each.line,
                each.doc,
                len(here.users.get(name, ())),
                _tests(here.tests.get(name, ())),
                _documents(here.documented.get(name, ())),
            )


def _tests(found: Sequence[Tested]) -> list[tuple[str, int, str]]:
    return [(each.path, each.line, each.test) for each in found[:MAX_PLACES]]


def _documents(found: Sequence[Statement]) -> list[tuple[str, int]]:
    """The places in documents of the tree."""
    inside = (each for each in found if not each.document.startswith("../"))
    return [(each.document, each.line) for each in inside][:MAX_PLACES]


def initial(last_part: str) -> str:
    """The letter that the index lists a name under."""
    first = last_part.lstrip("_$~-")[:1]
    return first if "a" <= first <= "z" else "other"


def by_initial(found: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The names under each letter."""
    letters: dict[str, list[Entry]] = {}
    for each in sorted(found):
        letters.setdefault(initial(each.sorted_by), []).append(each)
    return letters


def shares_of(found: Iterable[Entry]) -> dict[str, Share]:
    """The shares of one file in the index, by letter."""
    return {
        letter: Share(digest_of(names), len(names)) for letter, names in by_initial(found).items()
    }


def letter_page(letter: str, found: list[Entry], documented: frozenset[str]) -> Page:
    """The names under one letter."""
    rows = tuple(_row(each, documented) for each in found)
    blocks: tuple[Block, ...] = (
        Heading(1, (f"Names: {letter}",), ""),
        Paragraph((Link("All names", "names"),)),
        Table(("Name", "Kind", "Defined", "Used in", "Tested", "Documented"), rows),
    )
    return Page(f"names/{letter}", f"Names: {letter}", blocks)


def _row(entry: Entry, documented: frozenset[str]) -> tuple[Inlines, ...]:
    def place(path: str, line: int, text: str) -> Inline:
        is_page = path in documented
        return Link(text, docs_page(path), line_anchor(line)) if is_page else text

    name = entry.name.partition("#")[0]
    used = f"{entry.users:,} files" if entry.users > 1 else "1 file"
    return (
        (Link(name, docs_page(entry.path), name_anchor(entry.name), is_code=True),),
        (entry.kind,),
        (place(entry.path, entry.line, f"{entry.path}:{entry.line}"),),
        (Link(used, keywords_page(entry.path)),) if entry.users else (),
        joined(place(*each) for each in entry.tests),
        joined(place(path, line, f"{path}:{line}") for path, line in entry.documents),
    )


def names_page(counts: Mapping[str, int]) -> Page:
    """The index of all names; `counts` has how many names there are under each letter."""
    rows = tuple(
        ((Link(letter, f"names/{letter}"),), (f"{count:,}",)) for letter, count in counts.items()
    )
    total = sum(counts.values())
    blocks: tuple[Block, ...] = (
        Heading(1, ("Names",), ""),
        Paragraph((f"{total:,} names. ", Link("The tree", "index"), ".")),
        Table(("Letter", "Names"), rows),
    )
    return Page("names", "Names", blocks)


def search_script(summaries: Mapping[str, Summary], ending: str) -> str:
    """The names and files that the search of a page looks through."""
    found: list[tuple[str, str, str, str, str]] = []
    for path, summary in summaries.items():
        page = docs_page(path) + ending
        found.append((path, "file", page, "", ""))
        found += [
            (
                name.partition("#")[0],
                each.kind,
                page,
                name_anchor(name),
                each.doc[:MAX_SEARCHED_CHARACTERS],
            )
            for name, each in summary.definitions.items()
        ]
    return script_of(found)


def script_of(found: Iterable[tuple[str, str, str, str, str]]) -> str:
    """A script that sets what the search knows: name, kind, page, anchor and a word about each."""
    pages: dict[str, int] = {}
    rows = [
        [name, kind, pages.setdefault(page, len(pages)), anchor, about]
        for name, kind, page, anchor, about in found
    ]
    return f"window.ATLAS = {dumped({'pages': list(pages), 'names': rows})};\n"


def tags(summaries: Mapping[str, Summary]) -> str:
    """The names in the format of ctags, by which editors find definitions."""
    lines: list[str] = []
    for path, summary in summaries.items():
        for numbered, each in summary.definitions.items():
            name = numbered.partition("#")[0]
            place = f'{path}\t{each.line};"\tkind:{each.kind}\tname:{name}'
            lines.append(f"{bare(name)}\t{place}\n")
    lines.sort()
    head = "!_TAG_FILE_FORMAT\t2\t/extended/\n!_TAG_FILE_SORTED\t1\t/0=unsorted, 1=sorted/\n"
    return head + "".join(lines)
