from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adjoint.store import folder as folders
from adjoint.store.entries import DamagedEntry, Entry, Header, digest_of, packed
from adjoint.store.folder import Folder, NotTrusted

LIMIT = 1 << 20


def facts_of(text: str, **more: str) -> dict[str, str]:
    return {"subject": digest_of(text), **more}


def entry_of(text: str, payload: bytes = b"code", **more: str) -> Entry:
    return Entry(Header("object", facts_of(text, **more), f"label of {text}"), payload)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "cache", LIMIT)


def files(folder: Folder) -> list[Path]:
    return sorted(path for path in folder.path.rglob("*") if path.is_file())


def only_file(folder: Folder) -> Path:
    (path,) = files(folder)
    return path


def test_what_is_written_is_read(folder: Folder) -> None:
    assert folder.read("object", facts_of("a")) is None
    folder.write(entry_of("a"))
    found = folder.read("object", facts_of("a"))
    assert found == entry_of("a")
    assert folder.read("program", facts_of("a")) is None
    assert folder.read("object", facts_of("a", cpu="other")) is None
    assert folder.read("object", facts_of("b")) is None


def test_an_entry_is_replaced(folder: Folder) -> None:
    folder.write(entry_of("a", b"one"))
    folder.write(entry_of("a", b"two"))
    found = folder.read("object", facts_of("a"))
    assert found is not None
    assert found.payload == b"two"
    only_file(folder)


def test_an_entry_says_why_it_was_made(folder: Folder) -> None:
    folder.write(entry_of("a", features="+avx2,+avx512f", options="one"))
    folder.write(entry_of("a", features="+avx2,-avx512f", options="one"))
    found = folder.read("object", facts_of("a", features="+avx2,-avx512f", options="one"))
    assert found is not None
    assert found.header.because == "the CPU has no avx512f"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_only_the_owner_may_read_or_write(folder: Folder) -> None:
    folder.write(entry_of("a"))
    for path in [only_file(folder), *only_file(folder).parents]:
        if path == folder.path:
            break
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert folder.read("object", facts_of("a")) is not None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(folder: Folder, mode: int) -> None:
    folder.write(entry_of("a"))
    only_file(folder).chmod(mode)
    with pytest.raises(NotTrusted, match="others may write"):
        folder.read("object", facts_of("a"))
    assert list(folder.damaged()) == [only_file(folder)]


def test_a_folder_that_others_may_write_is_not_used(folder: Folder) -> None:
    folder.write(entry_of("a"))
    (folder.path / "1").chmod(0o777)
    with pytest.raises(NotTrusted, match="others may write"):
        folder.read("object", facts_of("a"))
    with pytest.raises(NotTrusted, match="others may write"):
        folder.write(entry_of("b"))


def test_a_file_of_another_owner_is_not_read(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(entry_of("a"))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(NotTrusted, match="another user"):
        folder.read("object", facts_of("a"))


def test_a_link_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    folder.write(entry_of("a"))
    path = only_file(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        folder.read("object", facts_of("a"))


def test_a_pipe_does_not_block(folder: Folder) -> None:
    folder.write(entry_of("a"))
    path = only_file(folder)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(DamagedEntry, match="no file"):
        folder.read("object", facts_of("a"))


def test_an_entry_under_the_name_of_another_is_refused(folder: Folder) -> None:
    folder.write(entry_of("a"))
    path = only_file(folder)
    path.write_bytes(packed(entry_of("b")))
    with pytest.raises(DamagedEntry, match="other facts"):
        folder.read("object", facts_of("a"))
    assert folder.damaged() == {path: "it is an entry of other facts"}


def test_damage_is_listed(folder: Folder) -> None:
    folder.write(entry_of("a"))
    folder.write(entry_of("b"))
    assert folder.damaged() == {}
    path = files(folder)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert list(folder.damaged()) == [path]


def test_what_was_used_longest_ago_is_removed_first(folder: Folder) -> None:
    for place, text in enumerate("abc"):
        folder.write(entry_of(text, b"x" * 1000))
        path = next(p for p in files(folder) if p.name.startswith(digest_of(text)[:40]))
        os.utime(path, (1000 + place, 1000 + place))
    assert folder.read("object", facts_of("a")) is not None  # Now it is the most recent.
    size = files(folder)[0].stat().st_size
    assert folder.prune(2 * size + 100) <= 2 * size + 100
    kept = {name: folder.read("object", facts_of(name)) is not None for name in "abc"}
    assert kept == {"a": True, "b": False, "c": True}


def test_the_bound_holds(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 20_000)
    for number in range(40):
        folder.write(entry_of(str(number), bytes(1000)))
        assert sum(path.stat().st_size for path in files(folder)) <= 20_000 + 2_000
    assert len(files(folder)) > 5
    folder.write(entry_of("large", bytes(30_000)))
    assert folder.read("object", facts_of("large")) is None


def test_a_header_that_is_too_large_is_not_kept(folder: Folder) -> None:
    folder.write(entry_of("a", options="x" * (1 << 19)))
    assert folder.read("object", facts_of("a", options="x" * (1 << 19))) is None
    assert files(folder) == []


def test_a_clock_that_jumps_does_no_harm(folder: Folder) -> None:
    folder.write(entry_of("a"))
    os.utime(only_file(folder), (1 << 33, 1 << 33))
    assert folder.read("object", facts_of("a")) is not None
    folder.write(entry_of("b"))
    assert folder.prune(LIMIT) > 0
    assert [each.header.label for each in folder.entries()] == ["label of a", "label of b"]


def test_what_a_killed_process_left_is_removed(folder: Folder) -> None:
    folder.write(entry_of("a"))
    old, recent = (folder.path / "1" / "new" / name for name in ("old", "recent"))
    for path in (old, recent):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    folder.prune(LIMIT)
    assert (old.exists(), recent.exists()) == (False, True)


def test_a_failed_write_leaves_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(entry_of("a"))

    def full(new: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        folder.write(entry_of("b"))
    assert folder.read("object", facts_of("b")) is None
    only_file(folder)


def test_another_version_lies_beside_it(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "VERSION", "0")
    older = Folder(folder.path, LIMIT)
    older.write(entry_of("a", b"older"))
    assert folder.read("object", facts_of("a")) is None
    folder.write(entry_of("a", b"newer"))
    found = older.read("object", facts_of("a"))
    assert found is not None
    assert found.payload == b"older"


WRITER = """
import sys
from pathlib import Path
from adjoint.store.entries import Entry, Header, digest_of
from adjoint.store.folder import Folder
folder = Folder(Path(sys.argv[1]), 1 << 26)
print("ready", flush=True)
for turn in range(int(sys.argv[2])):
    for number in range(8):
        facts = {"subject": digest_of(str(number))}
        payload = bytes([number]) * 100_000
        folder.write(Entry(Header("object", facts), payload))
        found = folder.read("object", facts)
        assert found is not None and found.payload == payload
"""


def start(path: Path, turns: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def assert_sound(folder: Folder) -> None:
    for number in range(8):
        found = folder.read("object", {"subject": digest_of(str(number))})
        assert found is None or found.payload == bytes([number]) * 100_000


@pytest.mark.parametrize("times", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_writers_that_are_killed(tmp_path: Path, times: int) -> None:
    """At random moments: a reader sees whole entries or none."""
    folder = Folder(tmp_path, 1 << 26)
    for turn in range(times):
        writer = start(tmp_path, 1_000_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            writer.wait(0.001 * (turn * 7 % 40))
        except subprocess.TimeoutExpired:
            writer.kill()
        writer.communicate()
        assert_sound(folder)
    folder.write(entry_of("more"))
    assert folder.damaged() == {}


@pytest.mark.parametrize("turns", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_writers_at_once(tmp_path: Path, turns: int) -> None:
    writers = [start(tmp_path, turns) for _ in range(8)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    folder = Folder(tmp_path, 1 << 26)
    assert_sound(folder)
    assert (len(folder.entries()), folder.damaged()) == (8, {})
