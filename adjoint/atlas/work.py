"""Work on single files, which processes share: reading facts, and writing pages."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adjoint.atlas import html, markdown
from adjoint.atlas.document import Page
from adjoint.atlas.extracting import extract
from adjoint.atlas.file_page import file_page
from adjoint.atlas.keyword_page import keyword_page
from adjoint.atlas.languages import language_of
from adjoint.atlas.linkcheck import Links, Places, links_of, places_of
from adjoint.atlas.plain import dumped
from adjoint.atlas.reading import read
from adjoint.atlas.references import References
from adjoint.atlas.store import Store
from adjoint.atlas.subject import Subject
from adjoint.atlas.summaries import Summary, summarize
from adjoint.atlas.tree import STORE, Entry

MIN_FILES_TO_SHARE = 24
"""Starting processes takes as long as working on about as many files."""

_CHUNK_FILES = 8
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Setting:
    """Where an atlas is made of what, in which format."""

    root: Path
    out: Path
    format: str
    tree: str
    documented: frozenset[str]
    """The files that have pages."""

    @property
    def ending(self) -> str:
        return html.ENDING if self.format == "html" else markdown.ENDING

    def rendered(self, page: Page) -> str:
        return html.rendered(page, self.tree) if self.format == "html" else markdown.rendered(page)

    def write(self, page: Page) -> bool:
        """Write a page, and where its links lead; whether a place is gone that it had."""
        _written(self._file(page.path), self.rendered(page))
        places, before = places_of(page), self.places(page.path)
        _written(self._kept("places", page.path), dumped((sorted(places.anchors), places.lines)))
        _written(self._kept("links", page.path), dumped(links_of(page)))
        return before is not None and places.lacks(before)

    def has(self, page: str) -> bool:
        """Whether a page is there."""
        return os.path.exists(self._file(page))

    def places(self, page: str) -> Places | None:
        """The places of a page that was written; None if there is no page."""
        try:
            with open(self._kept("places", page), encoding="utf-8") as file:
                anchors, lines = json.load(file)
        except (OSError, ValueError):
            return None
        return Places(frozenset(anchors), lines)

    def links(self, page: str) -> Links:
        """Where the links of a page that was written lead."""
        with open(self._kept("links", page), encoding="utf-8") as file:
            found: Links = json.load(file)
        return found

    def remove(self, page: str) -> None:
        """Remove a page that is made of nothing any more."""
        for file in (self._file(page), self._kept("places", page), self._kept("links", page)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)

    # Texts, because making a `Path` takes longer than opening a file.
    def _file(self, page: str) -> str:
        return f"{self.out}/{page}{self.ending}"

    def _kept(self, kind: str, page: str) -> str:
        return f"{self.out}/{STORE}/{kind}/{page}.json"


def _written(name: str, text: str) -> None:
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def summarized(setting: Setting, task: tuple[Entry, str]) -> Summary:
    """Read one file, keep its facts, and return their short form."""
    entry, key = task
    facts, text = extract(setting.root, entry)
    Store(setting.out).put_facts(key, facts)
    return summarize(entry.path, key, facts, text)


def documented(setting: Setting, task: tuple[str, str, References]) -> tuple[str, bool]:
    """Write the pages of one file; its path, and whether a place is gone that they had."""
    path, key, references = task
    facts = Store(setting.out).facts(key)
    text = read(setting.root / path, language_of(path))[1].text if facts.lines else ""
    subject = Subject(path, facts, text, references, setting.documented)
    lost = [setting.write(page) for page in (file_page(subject), keyword_page(subject))]
    return path, any(lost)


_setting: Setting | None = None


def _set_up(setting: Setting) -> None:
    global _setting
    _setting = setting


def _in_worker(work: Callable[[Setting, _Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
    assert _setting is not None
    return [work(_setting, task) for task in tasks]


class Workers:
    """The processes of one run, which are started when there is enough for them to do."""

    def __init__(self, setting: Setting, jobs: int) -> None:
        self.setting = setting
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def map(
        self, work: Callable[[Setting, _Task], _Result], tasks: Sequence[_Task]
    ) -> Iterable[_Result]:
        """The results of the work on each task, in the order of the tasks."""
        if self.jobs == 1 or len(tasks) < MIN_FILES_TO_SHARE:
            return [work(self.setting, task) for task in tasks]
        if self._pool is None:
            # A fresh process: one that was forked from a process with threads may hang.
            self._pool = ProcessPoolExecutor(
                self.jobs,
                multiprocessing.get_context("spawn"),
                initializer=_set_up,
                initargs=(self.setting,),
            )
        chunks = [tasks[at : at + _CHUNK_FILES] for at in range(0, len(tasks), _CHUNK_FILES)]
        done = self._pool.map(functools.partial(_in_worker, work), chunks)
        return [result for chunk in done for result in chunk]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
