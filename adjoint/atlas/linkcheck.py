"""Checking links: those of pages that were just made, and those of files that lie in a folder."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from adjoint.atlas.document import Page, line_anchor

_LINE = line_anchor(0).removesuffix("0")

Links: TypeAlias = dict[str, list[str]]
"""For each page that is linked to, the anchors of it; an empty one is the page itself."""


class Places(NamedTuple):
    """The places of a page that links may lead to."""

    anchors: frozenset[str]
    """Without those of lines."""
    lines: int

    def has(self, anchor: str) -> bool:
        """Whether a link to `anchor` leads somewhere."""
        number = anchor.removeprefix(_LINE)
        is_line = number.isdigit() and 1 <= int(number) <= self.lines
        return is_line or not anchor or anchor in self.anchors

    def lacks(self, before: Places) -> bool:
        """Whether a place is gone that the page had before."""
        return self.lines < before.lines or not before.anchors <= self.anchors


def places_of(page: Page) -> Places:
    """The places of a page."""
    anchors = page.anchors()
    named = frozenset(each for each in anchors if not each.startswith(_LINE))
    return Places(named, len(anchors) - len(named))


def links_of(page: Page) -> Links:
    """Where the links of a page lead."""
    links: dict[str, set[str]] = {}
    for link in page.links():
        links.setdefault(link.page, set()).add(link.anchor)
    return {target: sorted(found) for target, found in sorted(links.items())}


def dead(places: Mapping[str, Places], links: Mapping[str, Links]) -> list[str]:
    """The links that lead to no page, or to no place in one; `links` has those of each page."""
    found: list[str] = []
    for page, found_links in links.items():
        for target, anchors in found_links.items():
            if target not in places:
                found.append(f"{page}: there is no page {target}")
                continue
            found += [
                f"{page}: {target} has no place {anchor}"
                for anchor in anchors
                if not places[target].has(anchor)
            ]
    return found


_HTML_LINK = re.compile(r'<(?:a|link|script)\b[^<>]*?\s(?:href|src)="([^"]*)"')
_MARKDOWN_LINK = re.compile(r"(?<!\\)\]\(([^()\s]*)\)")
_PLACE = re.compile(r'<(?:a|span|h\d)\b[^<>]*?\sid="([^"]*)"')
_SOURCE = re.compile(r"^<pre>$.*?^</pre>$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


def _links_in(text: str, is_markdown: bool) -> set[str]:
    """The addresses that a text links to; in Markdown, code outside of source is not looked at."""
    if not is_markdown:
        return {unescape(each) for each in _HTML_LINK.findall(text)}
    found = [link for source in _SOURCE.findall(text) for link in _HTML_LINK.findall(source)]
    prose = _CODE.sub("code", _SOURCE.sub("", text))
    found += _HTML_LINK.findall(prose) + _MARKDOWN_LINK.findall(prose)
    return {unescape(each) for each in found}


def dead_in(folder: Path) -> list[str]:
    """The links of the files in a folder that lead to no file, or to no place in one."""
    files = [
        Path(top, name).relative_to(folder).as_posix()
        for top, _, names in os.walk(folder)
        for name in names
        if name.endswith((".md", ".html"))
    ]
    ids: dict[str, set[str]] = {}
    targets: dict[str, set[str]] = {}
    for file in files:
        text = (folder / file).read_text(encoding="utf-8")
        ids[file] = {unescape(each) for each in _PLACE.findall(text)}
        targets[file] = _links_in(text, file.endswith(".md"))
    found: list[str] = []
    for file in sorted(files):
        for target in sorted(targets[file]):
            path, _, place = target.partition("#")
            other = posixpath.normpath(posixpath.join(posixpath.dirname(file), unquote(path)))
            other = other if path else file
            if not (folder / other).is_file():
                found.append(f"{file}: there is no file {other}")
            elif place and unquote(place) not in ids.get(other, ()):
                found.append(f"{file}: {other} has no place {place}")
    return found
