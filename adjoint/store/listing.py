"""What `adjoint cache` prints: entries of a folder, why each was compiled, and damaged files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from adjoint.quantities import in_bytes
from adjoint.store.folder import Folder, StoredEntry


def listed(folder: Folder) -> str:
    """Every entry, the one used last first, and the bytes of each kind."""
    entries = folder.entries()
    if not entries:
        return f"{folder.path} has no entries"
    rows = [
        (each.header.kind, in_bytes(each.size), _moment(each.used), each.header.label)
        for each in reversed(entries)
    ]
    count, total = Counter[str](), Counter[str]()
    for each in entries:
        count[each.header.kind] += 1
        total[each.header.kind] += each.size
    lines = [f"{kind}: {count[kind]}, {in_bytes(total[kind])}" for kind in sorted(count)]
    return "\n".join([*_columns([("kind", "size", "last used", "of"), *rows]), "", *lines])


def explained(folder: Folder) -> str:
    """Why each derivative and program was compiled and not found, the last one first."""
    entries = [each for each in folder.entries() if each.header.kind in ("program", "derivative")]
    if not entries:
        return f"{folder.path} has no programs"
    lines: list[str] = []
    for each in reversed(entries):
        lines.append(f"{each.header.kind} of {each.header.label or 'a function'}")
        lines.append(f"    {reason(each, entries)}")
    return "\n".join(lines)


def reason(entry: StoredEntry, entries: Sequence[StoredEntry]) -> str:
    """Why an entry was made, given all entries of its folder."""
    header = entry.header
    if header.because:
        return f"an entry of the same graph did not fit: {header.because}"
    others = [
        each
        for each in entries
        if each.path != entry.path
        and (each.header.kind, each.header.label) == (header.kind, header.label)
    ]
    if others:
        return "no entry was of this graph; others of the same line are of other graphs"
    return "no entry was of this graph"


def verified(folder: Folder) -> str:
    """The files that are no sound entries; empty: all are."""
    return "\n".join(f"{path}: {why}" for path, why in sorted(folder.damaged().items()))


def removed(folder: Folder, paths: Sequence[Path]) -> str:
    """Remove files of the folder; returns what was done."""
    for path in paths:
        path.unlink(missing_ok=True)
    return f"removed {len(paths)} files"


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
