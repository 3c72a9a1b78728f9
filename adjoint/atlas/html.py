"""Pages as HTML: one design, without a network, with a search that answers as one types."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from html import escape
from pathlib import Path

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
from adjoint.atlas.markdown import address, linked_source
from adjoint.atlas.tree import GENERATED

ENDING = ".html"
ASSETS = Path(__file__).parent / "assets"
NAMES = "names.js"
"""The names that the search looks through, which a page loads when a search begins."""

_TEMPLATE = """\
<!DOCTYPE html><!-- {generated} -->
<html lang="en" data-root="{root}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · {tree}</title>
<link rel="stylesheet" href="{root}atlas.css">
<script src="{root}atlas.js" defer></script>
</head>
<body>
<header>
<a class="tree" href="{root}index.html">{tree}</a>
<nav class="path">{crumbs}</nav>
<div class="search"><input id="search" type="search" placeholder="Search names  ( / )" \
autocomplete="off" spellcheck="false" aria-label="Search names"><ol id="found" hidden></ol></div>
<button id="theme" type="button" aria-label="Light or dark">◐</button>
</header>
<div class="page">
<nav class="contents">{contents}</nav>
<main>
{body}
</main>
</div>
</body>
</html>
"""


def rendered(page: Page, tree: str) -> str:
    """The text of a page of the atlas of `tree`."""
    writer = _Writer(page)
    root = "../" * page.path.count("/")
    return _TEMPLATE.format(
        generated=GENERATED,
        root=root,
        title=escape(page.title),
        tree=escape(tree),
        crumbs="<span>/</span>".join(writer.inlines((each,)) for each in page.crumbs),
        contents="".join(_contents(page)),
        body="\n".join(writer.block(block) for block in page.blocks),
    )


def _contents(page: Page) -> Iterator[str]:
    """Links to the sections of a page."""
    headings = [block for block in page.blocks if isinstance(block, Heading) and block.level == 2]
    if len(headings) < 2:
        return
    yield "<ul>"
    for heading in headings:
        text = "".join(each if isinstance(each, str) else "" for each in heading.content)
        place = address(page.path, page.path, heading.anchor, ENDING)
        yield f'<li><a href="{place}">{escape(text)}</a></li>'
    yield "</ul>"


class _Writer:
    def __init__(self, page: Page) -> None:
        self.page = page

    def block(self, block: Block) -> str:
        match block:
            case Heading():
                anchor = f' id="{escape(block.anchor)}"' if block.anchor else ""
                return f"<h{block.level}{anchor}>{self.inlines(block.content)}</h{block.level}>"
            case Paragraph():
                return f"<p>{self.inlines(block.content)}</p>"
            case Bullets():
                items = "\n".join(f"<li>{self.inlines(item)}</li>" for item in block.items)
                return f"<ul>\n{items}\n</ul>"
            case Table():
                return "\n".join(self._rows(block))
            case Quoted():
                return f'<pre class="quoted">{escape(block.text, quote=False)}</pre>'
            case Listing():
                return '<pre class="source">' + "".join(self._lines(block)) + "</pre>"
            case Drawing():
                return f'<figure class="drawing">{block.svg}</figure>'
            case _:
                assert_never(block)

    def inlines(self, inlines: Inlines) -> str:
        return "".join(self._inline(each) for each in inlines)

    def _inline(self, inline: str | Code | Link | Anchor) -> str:
        match inline:
            case str():
                return escape(inline, quote=False)
            case Code():
                return f"<code>{escape(inline.text, quote=False)}</code>"
            case Link():
                text = escape(inline.text, quote=False)
                text = f"<code>{text}</code>" if inline.is_code else text
                return f'<a href="{self._address(inline)}">{text}</a>'
            case Anchor():
                return f'<span id="{escape(inline.name)}"></span>'
            case _:
                assert_never(inline)

    def _address(self, link: Link) -> str:
        return escape(address(self.page.path, link.page, link.anchor, ENDING))

    def _rows(self, table: Table) -> Iterator[str]:
        heads = "".join(f"<th>{escape(each)}</th>" for each in table.head)
        yield f'<div class="table"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>'
        for row in table.rows:
            cells = "".join(f"<td>{self.inlines(cell)}</td>" for cell in row)
            yield f"<tr>{cells}</tr>"
        yield "</tbody>\n</table></div>"

    def _lines(self, listing: Listing) -> Iterator[str]:
        for number, line in enumerate(listing.lines, 1):
            source = linked_source(line, self._address)
            yield f'<span id="{line_anchor(number)}" data-n="{number}">{source}\n</span>'


def assets() -> Iterator[tuple[str, str]]:
    """The files that every page needs, beside its pages."""
    for file in sorted(ASSETS.iterdir()):
        if file.suffix in {".css", ".js"}:
            yield posixpath.basename(file.as_posix()), file.read_text(encoding="utf-8")
