from __future__ import annotations

import os
from pathlib import Path

import pytest

from adjoint.store.entries import Entry, Header, digest_of
from adjoint.store.folder import Folder
from adjoint.store.listing import (
    explained,
    listed,
    removed,
    verified,
)


def keep(folder: Folder, subject: str, label: str, kind: str = "program", **facts: str) -> None:
    known = {"subject": digest_of(subject), **facts}
    folder.write(Entry(Header(kind, known, label), b"x" * 2000))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, 1 << 20)


def test_nothing_is_kept(folder: Folder) -> None:
    assert listed(folder).endswith("has no entries")
    assert explained(folder).endswith("has no programs")
    assert verified(folder) == ""


def test_entries_are_listed_with_their_bytes(folder: Folder) -> None:
    keep(folder, "a", "model.py:3 in f: y = x.sin()")
    keep(folder, "b", "kernel0", "object")
    text = listed(folder)
    assert "model.py:3 in f: y = x.sin()" in text
    assert "object: 1, 2." in text
    assert "program: 1, 2." in text


def test_a_file_of_the_far_future_is_listed(folder: Folder) -> None:
    keep(folder, "a", "f")
    for path in folder.path.rglob("*.*"):
        os.utime(path, (1 << 40, 1 << 40))
    assert "f" in listed(folder)


def test_reasons(folder: Folder) -> None:
    keep(folder, "a", "model.py:3", torch="2.11", features="+avx2,+avx512f")
    keep(folder, "a", "model.py:3", torch="2.13", features="+avx2,+avx512f")
    keep(folder, "a", "model.py:3", torch="2.13", features="+avx2,-avx512f")
    keep(folder, "b", "model.py:3", torch="2.13")
    keep(folder, "c", "other.py:1", torch="2.13")
    text = explained(folder)
    assert "did not fit: torch is 2.13, and was 2.11" in text
    assert "did not fit: the CPU has no avx512f" in text
    assert "others of the same line are of other graphs" in text
    assert "program of other.py:1\n    no entry was of this graph" in text


def test_damage_is_named_and_removed(folder: Folder) -> None:
    keep(folder, "a", "f")
    (path,) = (p for p in folder.path.rglob("*") if p.is_file())
    path.write_bytes(b"nothing")
    assert verified(folder) == f"{path}: it does not begin as an entry does"
    assert removed(folder, [path]) == "removed 1 files"
    assert verified(folder) == ""
