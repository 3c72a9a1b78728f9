"""The pages of a folder: what is in it (`index`), and what it is about (`doc`)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from adjoint.atlas.document import (
    Block,
    Bullets,
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
    folder_page,
    keywords_page,
    line_anchor,
    name_anchor,
    paragraphs,
    prose,
    section_anchor,
    sections,
)
from adjoint.atlas.roles import Statement
from adjoint.atlas.summaries import Summary, first_sentence
from adjoint.quantities import counted

MAX_NAMES = 15

_ABOUT = ("__init__.py", "README.md", "README.rst", "README", "mod.rs", "lib.rs", "doc.go")
"""Files that speak for their folder, the first that says something."""


@dataclass(frozen=True)
class Folder:
    """What the pages of one folder show."""

    path: str
    """Empty for the tree itself."""
    name: str
    files: tuple[Summary, ...]
    """Directly in it."""
    folders: tuple[tuple[str, str, int], ...]
    """Path, purpose and number of files of each folder directly in it."""
    sizes: tuple[tuple[str, int, int], ...]
    """Language, number of files and number of lines, of all files below it."""
    unread: tuple[tuple[str, tuple[str, ...]], ...]
    """Files below it that could not be read or parsed, and why."""
    statements: tuple[Statement, ...]
    asks_for: tuple[tuple[str, int], ...]
    """Other folders, with the number of files here that import from them."""
    asked_by: tuple[tuple[str, int], ...]
    most_used: tuple[tuple[str, str, int], ...]
    """File, name, and number of files elsewhere that use it."""
    problems: tuple[str, ...] = ()
    """Of the tree: folders that could not be listed."""

    @property
    def inputs(self) -> list[object]:
        """All that the pages depend on, as plain data."""
        files = [
            (s.path, s.language, s.lines, s.size, s.purpose, s.problems, len(s.definitions))
            for s in self.files
        ]
        below = (self.folders, self.sizes, self.unread, self.problems)
        rest = (self.statements, self.asks_for, self.asked_by, self.most_used)
        return [self.path, self.name, files, *below, *rest]


def purpose_of(files: Iterable[Summary]) -> str:
    """What the files directly in a folder say of it."""
    by_name = {posixpath.basename(each.path): each for each in files}
    found = (by_name[name].purpose for name in _ABOUT if name in by_name)
    return next((purpose for purpose in found if purpose), "")


def index_page(folder: Folder) -> Page:
    """What is in a folder."""
    shown = f"{folder.path or folder.name}/"
    blocks: list[Block] = [
        Heading(1, (Code(shown),), ""),
        Paragraph(
            (
                Link("What it is about", folder_page(folder.path, "doc")),
                *_up(folder),
                *(
                    (" · ", Link("Names", "names"), " · ", Link("Map", "map"))
                    if not folder.path
                    else ()
                ),
            )
        ),
    ]
    if folder.folders:
        rows = tuple(
            (
                (Link(f"{posixpath.basename(path)}/", folder_page(path), is_code=True),),
                (f"{count:,}",),
                prose(first_sentence(purpose)),
            )
            for path, purpose, count in folder.folders
        )
        blocks.append(Heading(2, ("Folders",), section_anchor("Folders")))
        blocks.append(Table(("Folder", "Files", "Purpose"), rows))
    if folder.files:
        blocks.append(Heading(2, ("Files",), section_anchor("Files")))
        head = ("File", "Names", "Language", "Lines", "Purpose")
        blocks.append(Table(head, tuple(_file_row(each) for each in folder.files)))
    if folder.problems:
        blocks.append(Heading(2, ("Problems",), section_anchor("Problems")))
        blocks.append(Bullets(tuple(prose(each) for each in folder.problems)))
    return Page(folder_page(folder.path), shown, tuple(blocks), crumbs(folder.path))


def _up(folder: Folder) -> Inlines:
    if not folder.path:
        return ()
    above = posixpath.dirname(folder.path)
    return (" · ", Link(f"{above or '.'}/", folder_page(above)))


def _file_row(summary: Summary) -> tuple[Inlines, ...]:
    name = posixpath.basename(summary.path)
    purpose = first_sentence(summary.purpose) or " ".join(summary.problems)
    return (
        (Link(name, docs_page(summary.path), is_code=True),),
        (Link(f"{len(summary.definitions):,}", keywords_page(summary.path)),),
        (summary.language,),
        (f"{summary.lines:,}",),
        prose(purpose),
    )


def doc_page(folder: Folder, documented: Mapping[str, Summary]) -> Page:
    """What a folder is about."""
    shown = f"{folder.path or folder.name}/"
    blocks: list[Block] = [
        Heading(1, ("About ", Code(shown)), ""),
        Paragraph((Link("What is in it", folder_page(folder.path)), *_up(folder))),
    ]
    contents = {
        "Purpose": _purpose(folder),
        "Role": _role(folder, documented),
        "Size": _size(folder),
        "Dependencies": _dependencies(folder),
        "Names that others use most": _most_used(folder),
        "Problems": _problems(folder),
    }
    blocks += sections(contents)
    page = folder_page(folder.path, "doc")
    return Page(page, f"About {shown}", tuple(blocks), crumbs(folder.path))


def _purpose(folder: Folder) -> Iterator[Block]:
    purpose = purpose_of(folder.files)
    if not purpose:
        yield Paragraph(("No file in it says what the folder is for.",))
    yield from paragraphs(purpose)


def _role(folder: Folder, documented: Mapping[str, Summary]) -> Iterator[Block]:
    items: list[Inlines] = []
    for each in folder.statements:
        text = f"{each.document}:{each.line}"
        source: Inline = (
            Link(text, docs_page(each.document), line_anchor(each.line))
            if each.document in documented
            else text
        )
        items.append((*prose(each.sentence), " (", source, ")"))
    if items:
        yield Bullets(tuple(items))


def _size(folder: Folder) -> Iterator[Block]:
    rows = tuple(
        ((language,), (f"{files:,}",), (f"{lines:,}",)) for language, files, lines in folder.sizes
    )
    if rows:
        yield Table(("Language", "Files", "Lines"), rows)


def _dependencies(folder: Folder) -> Iterator[Block]:
    for title, found in (
        ("It asks for:", folder.asks_for),
        ("It is asked for by:", folder.asked_by),
    ):
        if found:
            yield Paragraph((title,))
            yield Bullets(
                tuple(
                    (
                        Link(f"{path or '.'}/", folder_page(path), is_code=True),
                        f": {counted(count, 'file')}",
                    )
                    for path, count in found
                )
            )


def _most_used(folder: Folder) -> Iterator[Block]:
    if folder.most_used:
        rows = tuple(
            (
                (Link(name, docs_page(path), name_anchor(name), is_code=True),),
                (Link(path, docs_page(path), is_code=True),),
                (f"{count:,}",),
            )
            for path, name, count in folder.most_used
        )
        yield Table(("Name", "File", "Files that use it"), rows)


def _problems(folder: Folder) -> Iterator[Block]:
    if folder.unread:
        yield Bullets(
            tuple(
                (Link(path, docs_page(path), is_code=True), ": ", *prose(" ".join(problems)))
                for path, problems in folder.unread
            )
        )
