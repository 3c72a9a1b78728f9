"""What is kept between runs, as JSON beside the pages: facts by content, and what each page is of.

Nothing in it can run code when it is read.  A store that is missing, unfinished or of another
version is as good as none: everything is made again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from adjoint.atlas import facts, history, resolution, summaries
from adjoint.atlas.extracting import VERSION
from adjoint.atlas.facts import Facts
from adjoint.atlas.history import History
from adjoint.atlas.plain import dumped
from adjoint.atlas.resolution import Resolved
from adjoint.atlas.summaries import Summary
from adjoint.atlas.tree import STORE
from adjoint.open_types import FromText

_UNFINISHED = "unfinished"
_SHARDS = 32
"""How many files hold what is kept of all files; a change to one source file writes one of them."""


class FileState(NamedTuple):
    """A source file at the last run."""

    key: str
    size: int
    modified_ns: int


class Share(NamedTuple):
    """What one file adds to one letter of the index of names."""

    digest: str
    names: int


class State(NamedTuple):
    """What the last run made."""

    files: dict[str, FileState]
    pages: dict[str, str]
    """The digest of what each written file was made from."""
    shares: dict[str, dict[str, Share]]
    """For each file, its shares in the index of names, by letter."""


NO_STATE = State({}, {}, {})


class Store:
    """The folder of an atlas that holds what is kept."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / STORE

    def open(self) -> State:
        """The state of the last run that finished; from now on this run is unfinished."""
        state = self._state()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _UNFINISHED).touch()
        return state

    def _state(self) -> State:
        try:
            version, files, pages, shares = json.loads(self._read("state.json"))
        except (OSError, ValueError):
            return NO_STATE
        if version != VERSION or (self.folder / _UNFINISHED).exists():
            # The pages are there, made from nothing that is known.
            return State({}, dict.fromkeys(pages, ""), {})
        return State(
            {path: FileState(*each) for path, each in files.items()},
            pages,
            {
                path: {letter: Share(*each) for letter, each in found.items()}
                for path, found in shares.items()
            },
        )

    def close(self, state: State, before: State) -> None:
        """Keep the state, and drop facts that no file has any more."""
        self._write("state.json", [VERSION, *state])
        for key in {e.key for e in before.files.values()} - {e.key for e in state.files.values()}:
            self._facts(key).unlink(missing_ok=True)
        (self.folder / _UNFINISHED).unlink()

    def has_facts(self, key: str) -> bool:
        return os.path.exists(f"{self.folder}/facts/{key[:2]}/{key}.json")

    def facts(self, key: str) -> Facts:
        return facts.from_json(json.loads(self._facts(key).read_text(encoding="utf-8")))

    def put_facts(self, key: str, found: Facts) -> None:
        file = self._facts(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dumped(found), encoding="utf-8")

    def summaries(self) -> dict[str, Summary]:
        """The summaries of the last run, by path."""
        return {row[0]: summaries.from_json(row) for row in self._rows("summaries")}

    def put_summaries(self, found: Mapping[str, Summary], changed: Iterable[str]) -> None:
        """Keep summaries; `changed` are the paths whose summaries are new, other, or gone."""
        self._put_rows("summaries", found, changed)

    def resolved(self) -> dict[str, Resolved]:
        """What the names of each file meant at the last run."""
        return {path: resolution.from_json(row) for path, row in self._rows("resolved")}

    def put_resolved(self, found: Mapping[str, Resolved], changed: Iterable[str]) -> None:
        """Keep what names mean; `changed` are the paths of which that is new, other, or gone."""
        rows = {path: (path, each) for path, each in found.items()}
        self._put_rows("resolved", rows, changed)

    def _rows(self, kind: str) -> Iterator[FromText]:
        for file in sorted((self.folder / kind).glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                yield from json.loads(file.read_text(encoding="utf-8"))

    def _put_rows(self, kind: str, rows: Mapping[str, object], changed: Iterable[str]) -> None:
        """Write the files of rows, which begin with their paths, that hold a changed one."""
        numbers = {_shard(path) for path in changed}
        shards: dict[int, list[object]] = {number: [] for number in numbers}
        for path, row in rows.items():
            if _shard(path) in numbers:
                shards[_shard(path)].append(row)
        (self.folder / kind).mkdir(exist_ok=True)
        for number, found in shards.items():
            self._write(f"{kind}/{number}.json", found)

    def history(self, root: Path) -> History:
        """The history of a tree, which is read again when its commit has changed."""
        head = history.head_of(root)
        if not head:
            return history.NO_HISTORY
        try:
            kept = history.from_json(json.loads(self._read("history.json")))
        except (OSError, ValueError):
            kept = history.NO_HISTORY
        if kept.head == head:
            return kept
        found = history.history_of(root)
        self._write("history.json", found)
        return found

    def _facts(self, key: str) -> Path:
        return self.folder / "facts" / key[:2] / f"{key}.json"

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def _write(self, name: str, value: object) -> None:
        (self.folder / name).write_text(dumped(value), encoding="utf-8")


@functools.cache
def _shard(path: str) -> int:
    return zlib.crc32(path.encode()) % _SHARDS
