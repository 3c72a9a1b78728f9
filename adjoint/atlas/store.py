"""What is kept between runs, as JSON beside the pages: facts by content, and what each page is of.

Nothing in it can run code when it is read.  A store that is missing, unfinished or of another
version is as good as none: everything is made again.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from adjoint.atlas import facts, history, summaries
from adjoint.atlas.extracting import VERSION
from adjoint.atlas.facts import Facts
from adjoint.atlas.history import History
from adjoint.atlas.summaries import Summary
from adjoint.atlas.tree import STORE

_UNFINISHED = "unfinished"
_SHARDS = 32
"""How many files hold the summaries; a change to one source file writes one of them."""


class FileState(NamedTuple):
    """A source file at the last run."""

    key: str
    size: int
    modified_ns: int


class State(NamedTuple):
    """What the last run made."""

    files: dict[str, FileState]
    pages: dict[str, str]
    """The digest of what each written file was made from."""


NO_STATE = State({}, {})


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
            version, files, pages = json.loads(self._read("state.json"))
        except (OSError, ValueError):
            return NO_STATE
        if version != VERSION or (self.folder / _UNFINISHED).exists():
            return NO_STATE
        return State({path: FileState(*each) for path, each in files.items()}, pages)

    def close(self, state: State) -> None:
        """Keep the state, and drop facts that no file has any more."""
        self._write("state.json", [VERSION, state.files, state.pages])
        keys = {each.key for each in state.files.values()}
        for file in (self.folder / "facts").glob("*/*.json"):
            if file.stem not in keys:
                file.unlink()
        (self.folder / _UNFINISHED).unlink()

    def has_facts(self, key: str) -> bool:
        return self._facts(key).exists()

    def facts(self, key: str) -> Facts:
        return facts.from_json(json.loads(self._facts(key).read_text(encoding="utf-8")))

    def put_facts(self, key: str, found: Facts) -> None:
        file = self._facts(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dumped(found), encoding="utf-8")

    def summaries(self) -> dict[str, Summary]:
        """The summaries of the last run, by path."""
        found: dict[str, Summary] = {}
        for number in range(_SHARDS):
            try:
                rows = json.loads(self._read(f"summaries/{number}.json"))
            except (OSError, ValueError):
                continue
            found.update({row[0]: summaries.from_json(row) for row in rows})
        return found

    def put_summaries(self, found: dict[str, Summary], changed: Iterable[str]) -> None:
        """Keep summaries; `changed` are the paths whose summaries are new, other, or gone."""
        numbers = {_shard(path) for path in changed}
        shards: dict[int, list[Summary]] = {number: [] for number in numbers}
        for path, summary in found.items():
            number = _shard(path)
            if number in numbers:
                shards[number].append(summary)
        (self.folder / "summaries").mkdir(exist_ok=True)
        for number, rows in shards.items():
            self._write(f"summaries/{number}.json", rows)

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

    def _write(self, name: str, value: Any) -> None:
        (self.folder / name).write_text(dumped(value), encoding="utf-8")


def _shard(path: str) -> int:
    return zlib.crc32(path.encode()) % _SHARDS


def dumped(value: Any) -> str:
    """A value as JSON, the same text for the same value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def digest(*values: Any) -> str:
    """A hash of plain values."""
    return hashlib.sha256(dumped(values).encode("utf-8", errors="surrogatepass")).hexdigest()[:24]
