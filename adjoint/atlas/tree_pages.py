"""Pages of the whole tree: the index of all names, and the files that searches read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from adjoint.atlas.plain import dumped
from adjoint.atlas.references import References, Tested
from adjoint.atlas.roles import Statement
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


def entries(summaries: Mapping[str, Summary], references: Mapping[str, References]) -> list[Entry]:
    """Every name that the tree defines, in the order of the index."""
    found: list[Entry] = []
    for path, summary in summaries.items():
        here = references[path]
        tests = {name: _tests(each) for name, each in here.tests.items()}
        documents = {name: _documents(each) for name, each in here.documented.items()}
        for name, each in summary.definitions.items():
            found.append(
                Entry(
                    bare(name).casefold(),
                    name,
                    each.kind,
                    path,
                    each.line,
                    each.doc,
                    len(here.users.get(name, ())),
                    tests.get(name, []),
                    documents.get(name, []),
                )
            )
    found.sort()
    return found


def _tests(found: list[Tested]) -> list[tuple[str, int, str]]:
    return [(each.path, each.line, each.test) for each in found[:MAX_PLACES]]


def _documents(found: list[Statement]) -> list[tuple[str, int]]:
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
    for each in found:
        letters.setdefault(initial(each.sorted_by), []).append(each)
    return dict(sorted(letters.items(), key=lambda each: (each[0] == "other", each[0])))


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


def names_page(letters: Mapping[str, list[Entry]]) -> Page:
    """The index of all names."""
    rows = tuple(
        ((Link(letter, f"names/{letter}"),), (f"{len(found):,}",), (_sample(found),))
        for letter, found in letters.items()
    )
    total = sum(len(found) for found in letters.values())
    blocks: tuple[Block, ...] = (
        Heading(1, ("Names",), ""),
        Paragraph((f"{total:,} names. ", Link("The tree", "index"), ".")),
        Table(("Letter", "Names", "From, to"), rows),
    )
    return Page("names", "Names", blocks)


def _sample(found: list[Entry]) -> str:
    first, last = bare(found[0].name), bare(found[-1].name)
    return f"{first}, {last}" if first != last else first


def search_script(found: Iterable[Entry], files: Iterable[str], ending: str) -> str:
    """The names and files that the search of a page looks through."""
    files_found = ((path, "file", docs_page(path) + ending, "", "") for path in files)
    names_found = (
        (
            each.name.partition("#")[0],
            each.kind,
            docs_page(each.path) + ending,
            name_anchor(each.name),
            each.doc[:MAX_SEARCHED_CHARACTERS],
        )
        for each in found
    )
    return script_of((*files_found, *names_found))


def script_of(found: Iterable[tuple[str, str, str, str, str]]) -> str:
    """A script that sets what the search knows: name, kind, page, anchor and a word about each."""
    pages: dict[str, int] = {}
    rows = [
        [name, kind, pages.setdefault(page, len(pages)), anchor, about]
        for name, kind, page, anchor, about in found
    ]
    return f"window.ATLAS = {dumped({'pages': list(pages), 'names': rows})};\n"


def tags(found: Iterable[Entry]) -> str:
    """The names in the format of ctags, by which editors find definitions."""
    lines = sorted(_tag(each) for each in found)
    head = "!_TAG_FILE_FORMAT\t2\t/extended/\n!_TAG_FILE_SORTED\t1\t/0=unsorted, 1=sorted/\n"
    return head + "".join(lines)


def _tag(entry: Entry) -> str:
    name = entry.name.partition("#")[0]
    return f'{bare(name)}\t{entry.path}\t{entry.line};"\tkind:{entry.kind}\tname:{name}\n'
