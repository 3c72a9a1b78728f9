from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adjoint.store import claims
from adjoint.store.claims import Claim, claimed
from adjoint.store.keeping import Store


def never() -> bool:
    return False


def of(process: int) -> str:
    return f"{platform.node()} {process}"


@pytest.fixture
def other() -> int:
    """A process of this machine that is running: not this one."""
    return os.getppid()


def ended() -> int:
    """A process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_claim_is_a_file_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    claim = claimed(path, never)
    assert claim is not None
    assert os.readlink(path) == of(os.getpid())
    claim.release()
    assert not os.path.lexists(path)
    os.symlink("of another", path)
    claim.release()
    assert os.path.lexists(path)


def test_a_process_does_not_wait_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    first, second = claimed(path, never), claimed(path, never)
    assert first is not None
    assert second is not None
    second.release()
    assert os.path.lexists(path)


def test_what_another_process_has_made_is_there(tmp_path: Path, other: int) -> None:
    path = tmp_path / "claim"
    os.symlink(of(other), path)
    looks = iter([False, False, True])
    assert claimed(path, lambda: next(looks)) is None


def test_a_process_that_fails_leaves_it_to_others(tmp_path: Path, other: int) -> None:
    path = tmp_path / "claim"
    os.symlink(of(other), path)
    threading.Timer(0.2, path.unlink).start()
    assert isinstance(claimed(path, never), Claim)


def test_nobody_waits_for_a_process_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "POLL_SECONDS", 1000.0)
    path = tmp_path / "claim"
    os.symlink(of(ended()), path)
    claim = claimed(path, never)
    assert claim is not None
    assert os.readlink(path) == of(os.getpid())


@pytest.mark.parametrize("holder", ["", "no number", "elsewhere 1", "elsewhere 99999999999999"])
def test_nobody_waits_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    monkeypatch.setattr(claims, "MAX_WAIT_SECONDS", 0.2)
    path = tmp_path / "claim"
    if holder:
        os.symlink(holder, path)
    else:
        path.touch()
    assert isinstance(claimed(path, never), Claim)
    assert not os.path.lexists(path)


def test_a_folder_that_is_not_there_is_no_reason_to_wait(tmp_path: Path) -> None:
    claim = claimed(tmp_path / "none" / "claim", never)
    assert claim is not None
    claim.release()


def test_one_of_several_stores_makes_an_entry(tmp_path: Path) -> None:
    facts = {"subject": "ab" * 32}
    store = Store(tmp_path, 1 << 20)

    def make(claim: Claim) -> bytes:
        store.put("object", facts, b"made", "", claim)
        return b"made"

    assert store.found_or_made("object", facts, lambda: store.get("object", facts), make) == b"made"
    store.flush()
    assert not list((tmp_path / "1" / "new").iterdir())
    again = Store(tmp_path, 1 << 20)
    found = again.found_or_made(
        "object",
        facts,
        lambda: again.get("object", facts),
        lambda claim: pytest.fail("made again"),
    )
    assert found == b"made"


def test_a_claim_ends_with_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path, 1 << 20)

    def fail(claim: Claim) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.found_or_made("object", {"subject": "ab" * 32}, lambda: None, fail)
    assert not list((tmp_path / "1" / "new").iterdir())
