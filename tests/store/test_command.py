from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.cli import main
from adjoint.store.entries import Entry, Header, digest_of
from adjoint.store.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    facts = {"subject": digest_of("a")}
    Folder(tmp_path, 1 << 20).write(Entry(Header("program", facts, "model.py:3"), b"x"))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str]:
    status = main(["cache", *arguments, "--folder", str(folder)])
    return status, capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text = said(capsys, folder)
    assert (status, "model.py:3" in text) == (0, True)
    assert said(capsys, folder, "list") == (status, text)


def test_explain(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, text = said(capsys, folder, "explain")
    assert (status, "no entry was of this graph" in text) == (0, True)


def test_verify(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert said(capsys, folder, "verify") == (0, "1 entries are sound\n")
    (path,) = (p for p in folder.rglob("*") if p.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    assert said(capsys, folder, "verify")[0] == 1
    assert said(capsys, folder, "verify", "--remove")[0] == 0
    assert said(capsys, folder, "verify") == (0, "0 entries are sound\n")


def test_prune(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert said(capsys, folder, "prune", "--limit", "1000000")[1].startswith("2")
    assert said(capsys, folder, "prune") == (0, f"0 B are left in {folder}\n")


def test_without_a_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJOINT_CACHE", "off")
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("nothing is kept")
