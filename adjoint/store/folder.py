"""A folder of cache entries: found by their facts, written atomically, bounded in bytes.

    FOLDER/1/KIND/SS/SUBJECT.KEY        an entry; SS: the first letters of its subject
    FOLDER/1/new/...                    what is being written, and claims to make an entry

A file is written under another name and renamed, so a reader sees a whole entry or none, and
nothing is locked.  Of processes that need the same entry at once one makes it (`claims.py`); if two
do, they write the same, and either may be the last.  The entries that were read longest ago are
removed first.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from adjoint.store.claims import Claim, claimed
from adjoint.store.entries import (
    DamagedEntry,
    Entry,
    Facts,
    Header,
    header_bytes,
    header_of,
    key_of,
    packed,
    unpacked,
)
from adjoint.store.explaining import nearest

# The version of the file format; other versions have folders of their own.
VERSION = "1"

# A larger entry is neither written nor read.
MAX_ENTRY_BYTES = 1 << 28

# Unfinished writes are removed after an hour.
MAX_WRITE_SECONDS = 3600

# Pruning makes room for more than one entry, so that not every write prunes.
_SHARE_AFTER_PRUNING = 0.9

# Entries of one subject that are compared to explain why another one was needed.
_MAX_COMPARED = 16


class NotTrusted(Exception):
    """A file or folder is not used, because other users could have written it."""


@dataclass(frozen=True)
class StoredEntry:
    """An entry, as the folder lists it: its file, header, size and time of use."""

    path: Path
    header: Header
    size: int
    used: float
    """When it was last read or written: seconds of the file system's clock."""


class Folder:
    """The entries in one folder.  Every method raises `OSError` where the file system fails."""

    def __init__(self, path: Path, limit: int) -> None:
        """`limit`: the bytes of all entries together."""
        self.path = path
        self.limit = limit
        self._root = path / VERSION
        self._unseen = 0
        """Bytes written since the sizes of all entries were last summed."""
        self._has_pruned = False

    def read(self, kind: str, facts: Facts) -> Entry | None:
        """The entry of these facts, if there is one.  Raises `DamagedEntry`, `NotTrusted`."""
        path = self._path(kind, facts)
        try:
            data = self._content(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        entry = unpacked(data)
        # File names hold a part of the key.
        if entry.header.kind != kind or dict(entry.header.facts) != dict(facts):
            raise DamagedEntry("it is an entry of other facts")
        with contextlib.suppress(OSError):
            os.utime(path)
        return entry

    def write(self, entry: Entry) -> None:
        """Write an entry; one of the same facts is replaced."""
        header = entry.header
        path = self._path(header.kind, header.facts)
        compared = [each.facts for each in self._of_subject(path)]
        why = "; ".join(nearest(header.facts, compared))
        data = packed(replace(entry, header=replace(header, because=why)))
        # A header that is too large could not be read.
        is_large = len(data) - len(entry.payload) > header_bytes
        if is_large or len(data) > min(MAX_ENTRY_BYTES, self.limit):
            return
        self._make_folders(self._root, self._root / "new", path.parent.parent, path.parent)
        new = self._root / "new" / uuid.uuid4().hex
        with replacing(path, new):
            self._write_new(new, data)
        self._unseen += len(data)
        if not self._has_pruned or self._unseen > self.limit * (1 - _SHARE_AFTER_PRUNING):
            self.prune(self.limit, int(self.limit * _SHARE_AFTER_PRUNING))
            self._has_pruned = True

    def claim(self, kind: str, facts: Facts) -> Claim | None:
        """A claim to make the entry of these facts; None: another process has made it meanwhile."""
        path = self._path(kind, facts)
        try:
            self._make_folders(self._root, self._root / "new")
        except (OSError, NotTrusted):
            return Claim(None)
        return claimed(self._root / "new" / f"claim.{kind}.{path.name}", path.exists)

    def remove(self, kind: str, facts: Facts) -> None:
        """Remove the entry of these facts, if it is there."""
        self._path(kind, facts).unlink(missing_ok=True)

    def entries(self) -> list[StoredEntry]:
        """All entries, the one used longest ago first; what is no entry is left out."""
        found: list[StoredEntry] = []
        for path in self._files():
            with contextlib.suppress(OSError, DamagedEntry, NotTrusted):
                header = header_of(self._content(path, header_bytes))
                status = path.stat()
                found.append(StoredEntry(path, header, status.st_size, status.st_mtime))
        return sorted(found, key=lambda each: each.used)

    def damaged(self) -> dict[Path, str]:
        """The files that are no sound entries, and why."""
        found: dict[Path, str] = {}
        for path in self._files():
            damage = self._damage(path)
            if damage is not None:
                found[path] = damage
        return found

    def _damage(self, path: Path) -> str | None:
        try:
            header = unpacked(self._content(path)).header
            is_named = "subject" in header.facts and self._path(header.kind, header.facts) == path
            return None if is_named else "it is an entry of other facts"
        except FileNotFoundError:
            return None  # Another process removed it.
        except (OSError, DamagedEntry, NotTrusted) as error:
            return str(error)

    def prune(self, limit: int, target: int | None = None) -> int:
        """Remove the entries used longest ago if all have more bytes than `limit`, until they have
        at most `target`.  Returns the bytes that are left."""
        self._remove_unfinished()
        used: list[tuple[float, int, Path]] = []
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.lstat()
                used.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in used)
        self._unseen = 0
        if total <= limit:
            return total
        for _, size, path in sorted(used):
            if total <= (limit if target is None else target):
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                total -= size
        return total

    # Files

    def _make_folders(self, *folders: Path) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            # With `parents=True` those between would have the mode that the umask allows.
            folder.mkdir(mode=0o700, exist_ok=True)
            _require_own(os.stat(folder), folder)

    def _path(self, kind: str, facts: Facts) -> Path:
        subject = facts["subject"]
        name = f"{subject[:40]}.{key_of(kind, facts)[:40]}"
        return self._root / kind / subject[:2] / name

    def _files(self) -> Iterator[Path]:
        """Every file of an entry, in no order."""
        for kind in _folders(self._root):
            if kind.name != "new":
                for part in _folders(kind):
                    with contextlib.suppress(OSError):
                        yield from sorted(part.iterdir())

    def _of_subject(self, path: Path) -> Iterator[Header]:
        """Entries of the same subject as the one at `path`, and of the same kind."""
        subject = path.name.partition(".")[0]
        try:
            there = [p for p in path.parent.iterdir() if p.name.startswith(f"{subject}.")]
        except OSError:
            return
        for other in there[:_MAX_COMPARED]:
            if other != path:
                with contextlib.suppress(OSError, DamagedEntry, NotTrusted):
                    yield header_of(self._content(other, header_bytes))

    def _content(self, path: Path, most: int = MAX_ENTRY_BYTES) -> bytes:
        """The bytes of a file that only we can have written, or the first `most` of them."""
        _require_own(os.stat(self._root), self._root)
        # Without O_NONBLOCK, opening a pipe of this name would wait.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb", closefd=True) as file:
            status = os.fstat(descriptor)
            _require_own(status, path)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedEntry("it is no file")
            if status.st_size > MAX_ENTRY_BYTES:
                raise DamagedEntry(f"it has {status.st_size} bytes")
            return file.read(most)

    def _write_new(self, path: Path, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        # Not synced: what a crash of the system leaves incomplete has another digest.
        with open(os.open(path, flags, 0o600), "wb", closefd=True) as file:
            file.write(data)

    def _remove_unfinished(self) -> None:
        """Remove unfinished writes; their age is by the file system's own clock."""
        unfinished = self._root / "new"
        try:
            there = list(unfinished.iterdir())
            mark = unfinished / uuid.uuid4().hex
            mark.touch(mode=0o600)
            now = mark.stat().st_mtime
            mark.unlink()
        except OSError:
            return
        for path in there:
            with contextlib.suppress(OSError):
                # The clock may have been set back since.
                if abs(now - path.lstat().st_mtime) > MAX_WRITE_SECONDS:
                    path.unlink()


@contextlib.contextmanager
def replacing(path: Path, new: Path) -> Iterator[None]:
    """Write the file `new`, which takes the place of `path` once it is whole."""
    try:
        yield
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return []


def _require_own(status: os.stat_result, path: Path) -> None:
    """Raise `NotTrusted` if someone else owns it or may write it."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        raise NotTrusted(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotTrusted(f"others may write to {path}")
