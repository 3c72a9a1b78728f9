"""What git knows of the files of a tree: their last change, and which change together."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from adjoint.atlas.tree import git
from adjoint.open_types import FromText

MAX_COMMITS = 3000
MAX_FILES_TOGETHER = 20
"""A commit of more files says nothing of which belong together."""
MIN_TOGETHER = 2
MAX_RELATED = 6


class Change(NamedTuple):
    """The last commit that changed a file."""

    date: str
    commit: str
    subject: str


class History(NamedTuple):
    """The history of a tree, up to one commit."""

    head: str
    last: dict[str, Change]
    together: dict[str, list[tuple[str, int]]]
    """Files that changed in the same commits, with the number of those, most first."""


NO_HISTORY = History("", {}, {})


def head_of(root: Path) -> str:
    """The commit that a tree is at; empty outside of git."""
    return git(root, "rev-parse", "HEAD").strip()


def history_of(root: Path) -> History:
    """The history of the files below `root`."""
    log = git(
        root, "log", f"-n{MAX_COMMITS}", "--no-merges", "--relative", "--name-only", "-z",
        "--format=%x01%cs%x09%h%x09%s", "--", ".",
    )  # fmt: skip
    last: dict[str, Change] = {}
    pairs: Counter[tuple[str, str]] = Counter()
    for commit in log.split("\x01")[1:]:
        head, _, names = commit.partition("\0")
        date, number, subject = head.split("\t", 2)
        files = sorted({name.strip("\n") for name in names.split("\0")} - {""})
        for file in files:
            last.setdefault(file, Change(date, number, subject))
        if len(files) <= MAX_FILES_TOGETHER:
            pairs.update(itertools.combinations(files, 2))
    together: dict[str, list[tuple[str, int]]] = {}
    for (one, other), count in pairs.items():
        if count >= MIN_TOGETHER:
            together.setdefault(one, []).append((other, count))
            together.setdefault(other, []).append((one, count))
    for related in together.values():
        related.sort(key=lambda each: (-each[1], each[0]))
        del related[MAX_RELATED:]
    return History(head_of(root), last, together)


def from_json(row: list[FromText]) -> History:
    """The history that was written to JSON."""
    head, last, together = row
    return History(
        head,
        {path: Change(*change) for path, change in last.items()},
        {path: [(other, count) for other, count in each] for path, each in together.items()},
    )
