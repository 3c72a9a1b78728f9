"""Pages as data: blocks of text, code and links, which `markdown` and `html` write.

A page is named by its path without an ending, and links name pages, so that one page is the same
in every format, and every link can be checked before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import assert_never


@dataclass(frozen=True)
class Code:
    """A name, or a piece of source, in a sentence."""

    text: str


@dataclass(frozen=True)
class Link:
    """A reference to a page, or to an anchor of one."""

    text: str
    page: str
    anchor: str = ""
    is_code: bool = False


@dataclass(frozen=True)
class Anchor:
    """A place that links lead to, in a sentence or in the cell of a table."""

    name: str


Inline: TypeAlias = str | Code | Link | Anchor
Inlines: TypeAlias = tuple[Inline, ...]


@dataclass(frozen=True)
class Heading:
    """A heading; the page's own title has level 1."""

    level: int
    content: Inlines
    anchor: str


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several."""

    content: Inlines


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[Inlines, ...]


@dataclass(frozen=True)
class Table:
    """A table."""

    head: tuple[str, ...]
    rows: tuple[tuple[Inlines, ...], ...]


@dataclass(frozen=True)
class Quoted:
    """Text as its author laid it out, such as a docstring."""

    text: str


@dataclass(frozen=True)
class Listing:
    """Source, with an anchor for each line and links from names."""

    lines: tuple[tuple[str | Link, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """A picture, for formats that can show one; the page says the same in words."""

    svg: str


Block: TypeAlias = Heading | Paragraph | Bullets | Table | Quoted | Listing | Drawing


@dataclass(frozen=True)
class Page:
    """One page."""

    path: str
    """Without its ending, relative to the output folder."""
    title: str
    blocks: tuple[Block, ...]
    crumbs: tuple[Link, ...] = ()
    """The folders around it."""

    def anchors(self) -> set[str]:
        """Every place of the page that a link may lead to."""
        found: set[str] = set()
        for block in self.blocks:
            match block:
                case Heading():
                    found.add(block.anchor)
                case Listing():
                    found.update(line_anchor(n) for n in range(1, len(block.lines) + 1))
                case Paragraph() | Bullets() | Table() | Quoted() | Drawing():
                    pass
                case _:
                    assert_never(block)
            found.update(each.name for each in inlines_of(block) if isinstance(each, Anchor))
        return found - {""}

    def links(self) -> Iterator[Link]:
        """Every link of the page."""
        yield from self.crumbs
        for block in self.blocks:
            for each in inlines_of(block):
                if isinstance(each, Link):
                    yield each


def inlines_of(block: Block) -> Iterator[Inline]:
    """The text, code, links and anchors of a block, in order."""
    match block:
        case Heading() | Paragraph():
            yield from block.content
        case Bullets():
            for item in block.items:
                yield from item
        case Table():
            for row in block.rows:
                for cell in row:
                    yield from cell
        case Listing():
            for line in block.lines:
                yield from line
        case Quoted() | Drawing():
            return


def docs_page(path: str) -> str:
    """The page of a file."""
    return f"{path}_docs"


def keywords_page(path: str) -> str:
    """The page of the names of a file."""
    return f"{path}_kw"


def folder_page(folder: str, page: str = "index") -> str:
    """The page of a folder: what is in it (`index`), or what it is about (`doc`)."""
    return f"{folder}/{page}" if folder else page


def crumbs(folder: str) -> tuple[Link, ...]:
    """Links to a folder and the folders around it, the tree itself left out."""
    parts = folder.split("/") if folder else []
    return tuple(
        Link(part, folder_page("/".join(parts[: count + 1]))) for count, part in enumerate(parts)
    )


def line_anchor(line: int) -> str:
    return f"line-{line}"


def name_anchor(name: str) -> str:
    """The anchor of a definition; characters that an address cannot hold are numbers."""
    return "n-" + re.sub(r"[^\w.:~-]", lambda found: f"-{ord(found.group()):x}-", name)


def section_anchor(section: str) -> str:
    return "s-" + re.sub(r"\W+", "-", section.lower()).strip("-")


def sections(contents: Mapping[str, Iterable[Block]]) -> Iterator[Block]:
    """Each section under its title; one without content is left out."""
    for title, content in contents.items():
        blocks = list(content)
        if blocks:
            yield Heading(2, (title,), section_anchor(title))
            yield from blocks


def prose(text: str) -> Inlines:
    """A sentence in which what stands between backticks is code."""
    pieces = re.split(r"``?([^`\n]+)``?", text)
    return tuple(Code(p) if n % 2 else p for n, p in enumerate(pieces) if p)


def paragraphs(text: str) -> Iterator[Paragraph]:
    """A text of several paragraphs, as its author divided it."""
    for paragraph in text.split("\n\n"):
        if paragraph.strip():
            yield Paragraph(prose(" ".join(paragraph.split())))
