from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adjoint.store import versions as module
from adjoint.store.versions import source_digest, versions


def test_versions_are_those_of_this_process() -> None:
    found = versions()
    assert found.keys() == {"adjoint", "torch", "python"}
    assert found["torch"].startswith(torch.__version__)
    assert found["adjoint"] == source_digest()
    assert len(source_digest()) == 16


def test_any_change_of_the_package_counts_except_in_what_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("store", "atlas"):
        (tmp_path / name).mkdir()
    (tmp_path / "compiler.py").write_text("a = 1")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "store" / "versions.py"))
    before = source_digest.__wrapped__()
    (tmp_path / "atlas" / "page.py").write_text("b = 1")
    assert source_digest.__wrapped__() == before
    (tmp_path / "compiler.py").write_text("a = 2")
    assert source_digest.__wrapped__() != before
