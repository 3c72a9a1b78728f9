"""Making the atlas of a tree: walk, read, refer, write, check; only what has changed."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from adjoint.atlas import html
from adjoint.atlas.document import Page, docs_page, folder_page, keywords_page
from adjoint.atlas.extracting import content_key
from adjoint.atlas.folder_pages import doc_page, index_page
from adjoint.atlas.folders import folders_of
from adjoint.atlas.linkcheck import Places, dead
from adjoint.atlas.map_page import map_page
from adjoint.atlas.modules import Modules
from adjoint.atlas.names import Names
from adjoint.atlas.plain import digest_of
from adjoint.atlas.references import References, references
from adjoint.atlas.resolution import Resolved, resolve
from adjoint.atlas.roles import Roles
from adjoint.atlas.store import FileState, Share, State, Store
from adjoint.atlas.summaries import Summary
from adjoint.atlas.tree import Entry, Tree, walk
from adjoint.atlas.tree_pages import (
    by_initial,
    entries,
    letter_page,
    names_page,
    search_script,
    shares_of,
    tags,
)
from adjoint.atlas.work import Setting, Workers, documented, summarized

VERSION = 2
"""Grows with every change to what pages look like, so that they are written again."""


@dataclass(frozen=True)
class Made:
    """What one run did."""

    files: int
    read: tuple[str, ...]
    """The source files that were read, because they are new or changed."""
    written: tuple[str, ...]
    """The pages that were written, without endings."""
    removed: tuple[str, ...]
    dead_links: tuple[str, ...]
    problems: dict[str, tuple[str, ...]]
    """Files that could not be read or parsed, and why."""


def make(
    root: Path,
    out: Path,
    format: str = "md",
    only: str | None = None,
    trust_times: bool = False,
    jobs: int | None = None,
) -> Made:
    """Make the atlas of the tree at `root` in the folder `out`.

    `only` is a pattern of the files that have pages; the others are read for what they say of
    those.  With `trust_times`, a file whose size and time are those of the last run is not read.
    """
    tree = walk(root, out)
    chosen = frozenset(e.path for e in tree.entries if only is None or _matches(e.path, only))
    setting = Setting(tree.root, out, format, tree.name, chosen)
    workers = Workers(setting, jobs or os.cpu_count() or 1)
    try:
        return _Run(tree, setting, workers, trust_times).made()
    finally:
        workers.close()


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


@dataclass(eq=False)
class _Run:
    """One run."""

    tree: Tree
    setting: Setting
    workers: Workers
    trust_times: bool
    pages: dict[str, str] = field(default_factory=dict)
    """Every page, and what it is made from, as a digest."""
    written: list[str] = field(default_factory=list)
    has_lost_places: bool = False
    common: str = ""
    """What every page depends on, as a digest."""
    shares: dict[str, dict[str, Share]] = field(default_factory=dict)
    """For each file, its shares in the index of names, by letter."""
    before: State = field(init=False)
    store: Store = field(init=False)

    def made(self) -> Made:
        self.store = Store(self.setting.out)
        self.before = self.store.open()
        files = {entry.path: self._state(entry) for entry in self.tree.entries}
        kept = self.store.summaries() if self.before.files else {}
        summaries, read = self._summaries(files, kept)
        names = Names(summaries, Modules(self.tree.root, summaries))
        resolved, anew = resolve(names, kept, self.store.resolved() if kept else {})
        roles = Roles(self.tree.root, summaries, names.modules)
        found = references(summaries, resolved, names, roles, self.store.history(self.tree.root))
        shown = {path: summaries[path] for path in summaries if path in self.setting.documented}
        without_page = sorted(summaries.keys() - shown.keys())
        self.common = digest_of(VERSION, self.setting.format, self.tree.name, without_page)
        self._write_files(shown, resolved, found)
        self._write_tree(shown, found, roles)
        removed = [page for page in self.before.pages if page not in self.pages]
        for page in removed:
            self._remove(page)
        dead_links = self._dead_links(bool(removed))
        gone = self.before.files.keys() - files.keys()
        self.store.put_summaries(summaries, [*read, *gone])
        self.store.put_resolved(resolved, [*anew, *gone])
        self.store.close(State(files, self.pages, self.shares), self.before)
        return Made(
            files=len(shown),
            read=tuple(read),
            written=tuple(self.written),
            removed=tuple(removed),
            dead_links=tuple(dead_links),
            problems={path: each.problems for path, each in shown.items() if each.problems},
        )

    def _state(self, entry: Entry) -> FileState:
        """The state of a file, by its content, or by its size and time if those are trusted."""
        before = self.before.files.get(entry.path)
        same = before is not None and before[1:] == (entry.size, entry.modified_ns)
        if before is not None and same and self.trust_times:
            return before
        return FileState(content_key(self.tree.root, entry), entry.size, entry.modified_ns)

    def _summaries(
        self, files: Mapping[str, FileState], kept: Mapping[str, Summary]
    ) -> tuple[dict[str, Summary], list[str]]:
        """The summary of every file, of which those that have changed are read."""
        tasks = [
            (entry, files[entry.path].key)
            for entry in self.tree.entries
            if entry.path not in kept
            or kept[entry.path].key != files[entry.path].key
            or not self.store.has_facts(files[entry.path].key)
        ]
        new = {each.path: each for each in self.workers.map(summarized, tasks)}
        found = {path: new.get(path) or kept[path] for path in files}
        return found, [entry.path for entry, _ in tasks]

    def _is_current(self, page: str, made_from: str) -> bool:
        """Whether a page is there already; it is recorded as one of this run in any case."""
        self.pages[page] = made_from
        return self.before.pages.get(page) == made_from and self.setting.has(page)

    def _write_files(
        self,
        summaries: Mapping[str, Summary],
        resolved: Mapping[str, Resolved],
        found: Mapping[str, References],
    ) -> None:
        tasks: list[tuple[str, str, References]] = []
        for path, summary in summaries.items():
            # What names mean is most of it, and has a digest already.
            others = found[path]._replace(requests=[], meanings={})
            made_from = digest_of(self.common, summary.key, resolved[path].digest, others)
            pages = (docs_page(path), keywords_page(path))
            current = [self._is_current(page, made_from) for page in pages]
            if not all(current):
                tasks.append((path, summary.key, found[path]))
        for path, lost in self.workers.map(documented, tasks):
            self.has_lost_places |= lost
            self.written += [docs_page(path), keywords_page(path)]

    def _write(self, page: str, inputs: object, build: Callable[[], Page]) -> None:
        if not self._is_current(page, digest_of(self.common, inputs)):
            self._build(build())

    def _build(self, page: Page) -> None:
        self.has_lost_places |= self.setting.write(page)
        self.written.append(page.path)

    def _write_tree(
        self, summaries: Mapping[str, Summary], found: Mapping[str, References], roles: Roles
    ) -> None:
        """The pages of folders, the index of names, the map, and what searches read."""
        purposes: dict[str, str] = {}
        for folder in folders_of(self.tree.name, summaries, found, roles, self.tree.problems):
            purposes.update({f"{path}/": purpose for path, purpose, _ in folder.folders})
            inputs = digest_of(folder.inputs)
            self._write(folder_page(folder.path), inputs, partial(index_page, folder))
            about = partial(doc_page, folder, summaries)
            self._write(folder_page(folder.path, "doc"), inputs, about)
        self._write_names(summaries, found)
        imported = {
            path: [f for r in found[path].requests for f in r.files if f in summaries]
            for path in summaries
        }
        inputs = digest_of(imported, purposes, [each.purpose for each in summaries.values()])
        self._write("map", inputs, partial(map_page, summaries, imported, purposes))
        self._write_extras(summaries)

    def _write_names(
        self, summaries: Mapping[str, Summary], found: Mapping[str, References]
    ) -> None:
        """The index of names: the letters of which a name has changed."""
        for path, summary in summaries.items():
            kept = self.before.shares.get(path)
            is_same = self.before.pages.get(docs_page(path)) == self.pages[docs_page(path)]
            if kept is None or not is_same:
                kept = shares_of(entries(summary, found[path]))
            self.shares[path] = kept
        letters: dict[str, list[tuple[str, Share]]] = {}
        for path, kept in self.shares.items():
            for letter, share in kept.items():
                letters.setdefault(letter, []).append((path, share))
        stale = {
            letter
            for letter, each in letters.items()
            if not self._is_current(f"names/{letter}", digest_of(self.common, each))
        }
        files = {path for letter in stale for path, _ in letters[letter]}
        names = (each for path in files for each in entries(summaries[path], found[path], stale))
        for letter, written in by_initial(names).items():
            self._build(letter_page(letter, written, self.setting.documented))
        counts = {
            letter: sum(share.names for _, share in letters[letter])
            for letter in sorted(letters, key=lambda each: (each == "other", each))
        }
        self._write("names", list(counts.items()), partial(names_page, counts))

    def _write_extras(self, summaries: Mapping[str, Summary]) -> None:
        """Files beside the pages: the tags for editors, and in HTML the design and the search."""
        extras: dict[str, Callable[[], str]] = {"tags": partial(tags, summaries)}
        if self.setting.format == "html":
            extras[html.NAMES] = partial(search_script, summaries, html.ENDING)
        digests = dict.fromkeys(extras, digest_of(VERSION, self.shares))
        for name, text in html.assets() if self.setting.format == "html" else ():
            extras[name] = partial(str, text)
            digests[name] = digest_of(text)
        for name, build in extras.items():
            file = self.setting.out / name
            self.pages[f"={name}"] = digests[name]
            if self.before.pages.get(f"={name}") != digests[name] or not file.exists():
                file.write_text(build(), encoding="utf-8", newline="\n")

    def _remove(self, page: str) -> None:
        if page.startswith("="):
            (self.setting.out / page[1:]).unlink(missing_ok=True)
        else:
            self.setting.remove(page)

    def _dead_links(self, is_smaller: bool) -> list[str]:
        """Links that lead nowhere: of new pages, and of all where something is gone."""
        pages = [page for page in self.pages if not page.startswith("=")]
        checked = pages if self.has_lost_places or is_smaller else self.written
        links = {page: self.setting.links(page) for page in checked}
        targets = {target for each in links.values() for target in each}
        places: dict[str, Places] = {}
        for page in targets & self.pages.keys():
            found = self.setting.places(page)
            if found is not None:
                places[page] = found
        return dead(places, links)
