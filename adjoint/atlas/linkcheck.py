"""Checking links: those of pages that were just made, and those of files that lie in a folder."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from adjoint.atlas.document import Page, line_anchor


class Places(NamedTuple):
    """The anchors of a page, and where its links lead."""

    anchors: list[str]
    """Without those of lines."""
    lines: int
    links: dict[str, list[str]]
    """For each page, the anchors of it that are linked to; an empty one is the page itself."""

    def has(self, anchor: str) -> bool:
        """Whether a link to `anchor` leads somewhere."""
        number = anchor.removeprefix(line_anchor(0)[:-1])
        is_line = number.isdigit() and 1 <= int(number) <= self.lines
        return is_line or not anchor or anchor in self.anchors


def places_of(page: Page) -> Places:
    """The anchors and links of a page."""
    anchors = page.anchors()
    lines = sum(anchor.startswith(line_anchor(0)[:-1]) for anchor in anchors)
    links: dict[str, set[str]] = {}
    for link in page.links():
        links.setdefault(link.page, set()).add(link.anchor)
    named = sorted(each for each in anchors if not each.startswith(line_anchor(0)[:-1]))
    return Places(named, lines, {target: sorted(found) for target, found in sorted(links.items())})


def from_json(row: list[Any]) -> Places:
    return Places(*row)


def dead(places: Mapping[str, Places], checked: Iterable[str]) -> list[str]:
    """The links of the pages `checked` that lead nowhere."""
    found: list[str] = []
    for page in checked:
        for target, anchors in places[page].links.items():
            if target not in places:
                found.append(f"{page}: there is no page {target}")
                continue
            found += [
                f"{page}: {target} has no place {anchor}"
                for anchor in anchors
                if not places[target].has(anchor)
            ]
    return found


_HTML_LINK = re.compile(r'\b(?:href|src)="([^"]*)"')
_MARKDOWN_LINK = re.compile(r"\]\(([^()\s]*)\)")
_PLACE = re.compile(r'\bid="([^"]*)"')
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


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
        links = _HTML_LINK.findall(text)
        if file.endswith(".md"):
            links += _MARKDOWN_LINK.findall(_CODE.sub("code", text))
        targets[file] = {unescape(each) for each in links}
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
