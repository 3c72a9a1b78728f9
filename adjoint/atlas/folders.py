"""What is known of each folder of a tree: its files, and its dependencies both ways."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping

from adjoint.atlas.folder_pages import MAX_NAMES, Folder, purpose_of
from adjoint.atlas.references import References
from adjoint.atlas.roles import Roles
from adjoint.atlas.summaries import Summary
from adjoint.atlas.tree import folders

MAX_FOLDERS = 20


def folders_of(
    name: str,
    summaries: Mapping[str, Summary],
    references: Mapping[str, References],
    roles: Roles,
    problems: tuple[str, ...],
) -> list[Folder]:
    """Every folder that holds a file, the tree itself first."""
    paths = folders(tuple(summaries))
    files: dict[str, list[Summary]] = {path: [] for path in paths}
    every: dict[str, list[Summary]] = {path: [] for path in paths}
    for path, summary in summaries.items():
        folder = posixpath.dirname(path)
        files[folder].append(summary)
        for around in _around(folder):
            every[around].append(summary)
    asks, asked = _dependencies(summaries, references)
    inner: dict[str, list[tuple[str, str, int]]] = {path: [] for path in paths}
    for path in paths[1:]:
        about = (path, purpose_of(files[path]), len(every[path]))
        inner[posixpath.dirname(path)].append(about)
    return [
        Folder(
            path=path,
            name=name,
            files=tuple(files[path]),
            folders=tuple(inner[path]),
            sizes=_sizes(every[path]),
            unread=tuple((each.path, each.problems) for each in every[path] if each.problems),
            statements=tuple(dict.fromkeys(roles.of_folder.get(path, ()))),
            asks_for=_most(asks.get(path, Counter())),
            asked_by=_most(asked.get(path, Counter())),
            most_used=_most_used(path, every[path], references),
            problems=problems if not path else (),
        )
        for path in paths
    ]


def _sizes(files: list[Summary]) -> tuple[tuple[str, int, int], ...]:
    """Language, files and lines, the language with the most lines first."""
    found: dict[str, tuple[int, int]] = {}
    for each in files:
        count, lines = found.get(each.language, (0, 0))
        found[each.language] = (count + 1, lines + each.lines)
    rows = [(language, *size) for language, size in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row[2], row[0])))


def _around(folder: str) -> list[str]:
    """A folder and all folders around it, the tree last."""
    found = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        found.append(folder)
    return found


def _dependencies(
    summaries: Mapping[str, Summary], references: Mapping[str, References]
) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """For each folder, how many of its files import from others, and are imported by others."""
    asks: dict[str, Counter[str]] = {}
    asked: dict[str, Counter[str]] = {}
    for path in summaries:
        home = posixpath.dirname(path)
        files = {file for request in references[path].requests for file in request.files}
        targets = {posixpath.dirname(file) for file in files if file in summaries}
        for target in targets - {home}:
            asks.setdefault(home, Counter())[target] += 1
            asked.setdefault(target, Counter())[home] += 1
    return asks, asked


def _most(found: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(found.items(), key=lambda each: (-each[1], each[0]))[:MAX_FOLDERS])


def _most_used(
    folder: str, files: list[Summary], references: Mapping[str, References]
) -> tuple[tuple[str, str, int], ...]:
    """The names of a folder that the most files elsewhere use."""
    inside = f"{folder}/" if folder else ""
    found: list[tuple[str, str, int]] = []
    for summary in files:
        for name, users in references[summary.path].users.items():
            count = sum(not path.startswith(inside) or not inside for path, _ in users)
            if count > 1:
                found.append((summary.path, name, count))
    found.sort(key=lambda each: (-each[2], each[0], each[1]))
    return tuple(found[:MAX_NAMES])
