from __future__ import annotations

import os
import re
import threading
import warnings
from pathlib import Path

import pytest

from adjoint.errors import CacheWarning
from adjoint.store.entries import digest_of
from adjoint.store.folder import NotTrusted
from adjoint.store.keeping import (
    MAX_PENDING_WRITES,
    Store,
    current_store,
    keeping_in,
    kept_or_made,
    store_at,
    store_for,
)

FACTS = {"subject": digest_of("a")}
LIMIT = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", LIMIT)


def only_file(store: Store) -> Path:
    (path,) = (each for each in store.folder.path.rglob("*") if each.is_file())
    return path


def test_what_is_put_is_got(store: Store) -> None:
    assert store.get("object", FACTS) is None
    store.put("object", FACTS, b"code", "a label")
    store.flush()
    assert store.get("object", FACTS) == b"code"
    assert (store.hits, store.misses) == (1, 1)
    assert store.folder.entries()[0].header.label == "a label"


def test_a_payload_may_be_made_later(store: Store) -> None:
    store.put("object", FACTS, lambda: b"later")
    store.put("program", FACTS, lambda: None)
    store.flush()
    assert store.get("object", FACTS) == b"later"
    assert store.get("program", FACTS) is None


def test_damage_is_told_once_and_removed(store: Store) -> None:
    told: list[str] = []
    for _ in range(2):
        store.put("object", FACTS, b"code")
        store.flush()
        path = only_file(store)
        path.write_bytes(path.read_bytes()[:-1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert store.get("object", FACTS) is None
        assert not path.exists()
        told += [str(each.message) for each in caught]
    assert len(told) == 1
    assert "made again: its digest is that of other bytes" in told[0]


def test_files_of_others_are_told_of_and_stay(store: Store) -> None:
    store.put("object", FACTS, b"code")
    store.flush()
    only_file(store).chmod(0o666)
    where = re.escape(str(store.folder.path))
    with pytest.warns(CacheWarning, match=f"the cache {where} .*is not used: others may write"):
        assert store.get("object", FACTS) is None
    assert store.get("object", FACTS) is None
    assert only_file(store).exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache", LIMIT)
    assert store.get("object", FACTS) is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            store.put("object", FACTS, b"code")
            store.flush()
    assert len(caught) == 1
    assert "cannot be written" in str(caught[0].message)
    assert caught[0].category is CacheWarning


def test_a_failing_write_is_told_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotTrusted("no")

    monkeypatch.setattr(store.folder, "write", refuse)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.put("object", FACTS, b"code")
        store.put("object", FACTS, b"code")
        store.flush()
    assert len(caught) == 1


def test_a_payload_that_fails_is_told_of(store: Store) -> None:
    def payload() -> bytes:
        raise LookupError("nothing there")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.put("object", FACTS, payload)
        store.put("object", {"subject": digest_of("b")}, b"code")
        store.flush()
    assert ["LookupError: nothing there" in str(each.message) for each in caught] == [True]
    assert store.get("object", {"subject": digest_of("b")}) == b"code"


def test_a_warning_as_an_error_ends_nothing(store: Store) -> None:
    store.put("object", FACTS, b"code")
    store.flush()
    only_file(store).write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get("object", FACTS) is None


def test_kept_or_made(store: Store) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"5"

    def again() -> int:
        return kept_or_made("number", FACTS, make, int, ValueError, "a number")

    assert (again(), len(made)) == (5, 1)
    with keeping_in(store):
        assert current_store() is store
        assert (again(), len(made)) == (5, 2)
        store.flush()
        assert (again(), len(made)) == (5, 2)
        store.put("number", FACTS, b"five")
        store.flush()
        with pytest.warns(CacheWarning, match="made again"):
            assert (again(), len(made)) == (5, 3)
    assert current_store() is None


def test_the_store_that_an_option_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_for(False, LIMIT) is None
    found = store_for(str(tmp_path), LIMIT)
    assert found is not None
    assert found.folder.path == tmp_path
    assert found is store_at(tmp_path, LIMIT)


def test_a_forked_process_writes_too(store: Store) -> None:
    store.put("object", FACTS, b"code")
    store.flush()
    child = os.fork()
    if child == 0:
        other = store_at(store.folder.path, LIMIT)
        other.put("object", {"subject": digest_of("b")}, b"code")
        other.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("object", {"subject": digest_of("b")}) == b"code"


def test_what_waits_to_be_written_is_bounded(store: Store) -> None:
    disk = threading.Event()

    def slow() -> bytes:
        disk.wait()
        return b"code"

    try:
        for number in range(2 * MAX_PENDING_WRITES):
            store.put("object", {"subject": digest_of(str(number))}, slow)
    finally:
        disk.set()
    store.flush()
    assert len(store.folder.entries()) == MAX_PENDING_WRITES
