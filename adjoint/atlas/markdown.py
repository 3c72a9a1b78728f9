"""Pages as Markdown, for a repository or an editor."""

from __future__ import annotations

import functools
import html
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from typing_extensions import assert_never

from adjoint.atlas.document import (
    Anchor,
    Block,
    Bullets,
    Code,
    Drawing,
    Heading,
    Inlines,
    Link,
    Listing,
    Page,
    Paragraph,
    Quoted,
    Table,
    line_anchor,
)
from adjoint.atlas.tree import GENERATED

ENDING = ".md"


def rendered(page: Page) -> str:
    """The text of a page."""
    writer = _Writer(page)
    blocks = "\n\n".join(text for block in page.blocks if (text := writer.block(block)))
    return f"<!-- {GENERATED} -->\n\n{blocks}\n"


def address(source: str, target: str, anchor: str, ending: str) -> str:
    """A link from one page to another, relative to the first."""
    place = f"#{_quoted(anchor)}" if anchor else ""
    if target == source and anchor:
        return place
    return _relative(posixpath.dirname(source), target + ending) + place


@functools.lru_cache(maxsize=1 << 16)
def _relative(folder: str, file: str) -> str:
    """The quoted address of a file, seen from a folder."""
    here = folder.split("/") if folder else []
    there = file.split("/")
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    return quote("../" * (len(here) - shared) + "/".join(there[shared:]))


@functools.lru_cache(maxsize=1 << 16)
def _quoted(anchor: str) -> str:
    return quote(anchor)


class _Writer:
    def __init__(self, page: Page) -> None:
        self.page = page

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                mark = "#" * block.level
                return f"{mark} {_place(block.anchor)}{self.inlines(block.content)}"
            case Paragraph():
                return self.inlines(block.content)
            case Bullets():
                return "\n".join(f"- {self.inlines(item)}" for item in block.items)
            case Table():
                return "\n".join(self._rows(block))
            case Quoted():
                fence = "`" * max(3, _longest_run(block.text) + 1)
                return f"{fence}text\n{block.text}\n{fence}"
            case Listing():
                return "\n".join(self._lines(block))
            case Drawing():
                return ""
            case _:
                assert_never(block)

    def inlines(self, inlines: Inlines, in_cell: bool = False) -> str:
        text = "".join([self._inline(each) for each in inlines])
        if in_cell and "|" in text:
            text = re.sub(r"(?<!\\)\|", r"\\|", text)
        return text.replace("\n", " ") if in_cell else text

    def _inline(self, inline: str | Code | Link | Anchor) -> str:
        match inline:
            case str():
                return _escaped(inline)
            case Code():
                return _code(inline.text)
            case Link():
                text = _code(inline.text) if inline.is_code else _escaped(inline.text)
                return f"[{text}]({self._address(inline)})"
            case Anchor():
                return _place(inline.name)
            case _:
                assert_never(inline)

    def _address(self, link: Link) -> str:
        return address(self.page.path, link.page, link.anchor, ENDING)

    def _rows(self, table: Table) -> Iterator[str]:
        yield "| " + " | ".join(_escaped(each) for each in table.head) + " |"
        yield "|" + "---|" * len(table.head)
        for row in table.rows:
            yield "| " + " | ".join(self.inlines(cell, in_cell=True) for cell in row) + " |"

    def _lines(self, listing: Listing) -> Iterator[str]:
        width = len(str(len(listing.lines)))
        yield "<pre>"
        for number, line in enumerate(listing.lines, 1):
            source = linked_source(line, self._address)
            yield f'<a id="{line_anchor(number)}"></a>{number:{width}}  {source}'.rstrip()
        yield "</pre>"


def linked_source(line: Iterable[str | Link], address_of: Callable[[Link], str]) -> str:
    """A line of source as HTML, in which names are links."""
    return "".join(
        html.escape(each, quote=False)
        if isinstance(each, str)
        else f'<a href="{address_of(each)}">{html.escape(each.text, quote=False)}</a>'
        for each in line
    )


def _place(anchor: str) -> str:
    return f'<a id="{anchor}"></a>' if anchor else ""


_SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>&|~"})
_LIST_OR_HEADING = re.compile(r"^(\s*)([#+=-]|\d+[.)])(?=\s|$|[#=-])", re.MULTILINE)


def _escaped(text: str) -> str:
    text = text.translate(_SPECIAL)
    return _LIST_OR_HEADING.sub(r"\1\\\2", text)


def _code(text: str) -> str:
    text = text.replace("\n", " ")
    marks = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{marks}{pad}{text}{pad}{marks}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0) if "`" in text else 0
