"""Walking a source tree: which files there are, in a fixed order."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STORE = ".atlas"
"""The folder inside an output folder by which it is known to be one."""

GENERATED = "adjoint atlas page"
"""Stands in the first line of every page, so that pages are never documented in turn."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
_ENVIRONMENT = "pyvenv.cfg"
_COMPILED = frozenset({".pyc", ".pyo", ".so", ".o", ".a", ".dll", ".dylib", ".exe"})


@dataclass(frozen=True)
class Entry:
    """One file of the tree."""

    path: str
    """Relative to the tree, with forward slashes."""
    size: int
    modified_ns: int
    link: str | None = None
    """Where a symbolic link points to; such files are named, and not followed."""
    problem: str = ""
    """Why the file cannot be read."""


@dataclass(frozen=True)
class Tree:
    """The files of a source tree."""

    root: Path
    name: str
    entries: tuple[Entry, ...]
    problems: tuple[str, ...]
    """Folders that could not be listed, and links to folders, which are not followed."""


def walk(root: Path, out: Path | None = None) -> Tree:
    """All files under `root`, except hidden, compiled, ignored and generated ones."""
    root = root.resolve()
    ignored = _ignored(root)
    entries: list[Entry] = []
    problems: list[str] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            children = list(os.scandir(root / folder))
        except OSError as error:
            problems.append(f"{folder}/ cannot be listed: {error.strerror}.")
            continue
        for child in children:
            path = f"{folder}/{child.name}" if folder else child.name
            if child.name.startswith(".") or path in ignored or not _is_name(child.name):
                continue
            if child.is_symlink():
                entries.append(_link(child, path))
            elif child.is_dir(follow_symlinks=False):
                if not _is_skipped(Path(child.path), out):
                    pending.append(path)
            elif os.path.splitext(child.name)[1].lower() not in _COMPILED:
                entries.append(_entry(child, path))
    entries = [entry for entry in entries if not _is_generated(root, entry)]
    entries.sort(key=lambda entry: entry.path)
    return Tree(root, root.name, tuple(entries), tuple(sorted(problems)))


def folders(paths: Iterator[str] | tuple[str, ...]) -> list[str]:
    """Every folder that holds one of the files, the tree itself (an empty path) among them."""
    found = {""}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


def _is_name(name: str) -> bool:
    """Whether a page can be named after it: bytes that are no text cannot be written in one."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in name


def _link(child: os.DirEntry[str], path: str) -> Entry:
    target = os.readlink(child.path)
    return Entry(path, 0, 0, link=target)


def _entry(child: os.DirEntry[str], path: str) -> Entry:
    try:
        status = child.stat(follow_symlinks=False)
    except OSError as error:
        return Entry(path, 0, 0, problem=f"The file cannot be read: {error.strerror}.")
    if not stat.S_ISREG(status.st_mode):
        return Entry(path, 0, 0, problem="It is no regular file (a pipe, socket or device).")
    return Entry(path, status.st_size, status.st_mtime_ns)


def _is_skipped(folder: Path, out: Path | None) -> bool:
    """Whether a folder holds nothing that was written by hand: pages, installed packages."""
    return (
        folder.name in _SKIPPED_FOLDERS
        or (out is not None and folder == out.resolve())
        or os.path.isdir(folder / STORE)  # False, unlike `Path.is_dir`, where it may not be read.
        or os.path.exists(folder / _ENVIRONMENT)
    )


def _is_generated(root: Path, entry: Entry) -> bool:
    """Whether it is a page of an atlas that was copied here."""
    if not entry.path.endswith((".md", ".html")) or entry.problem or entry.link is not None:
        return False
    try:
        with open(root / entry.path, "rb") as file:
            return GENERATED.encode() in file.readline(200)
    except OSError:
        return False


def _ignored(root: Path) -> frozenset[str]:
    """What git ignores below `root`; nothing if git ignores `root` itself, or there is no git."""
    listed = git(
        root, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"
    )
    found = frozenset(path.rstrip("/") for path in listed.split("\0") if path)
    return frozenset() if "." in found else found


def git(root: Path, *arguments: str) -> str:
    """What a command of git prints; nothing where it fails, as outside of a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "-c", "core.quotepath=off", *arguments],
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.decode("utf-8", errors="surrogateescape")
