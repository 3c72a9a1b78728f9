from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from adjoint.store import versions as module
from adjoint.store.versions import code_generation_digest, source_digest, versions


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
    monkeypatch.setattr(module, "_FOLDER", tmp_path)
    before = source_digest.__wrapped__()
    (tmp_path / "atlas" / "page.py").write_text("b = 1")
    assert source_digest.__wrapped__() == before
    (tmp_path / "compiler.py").write_text("a = 2")
    assert source_digest.__wrapped__() != before


def test_machine_code_depends_on_what_compiles_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CODE_GENERATION", ("engine.py",))
    monkeypatch.setattr(module, "_FOLDER", tmp_path)
    (tmp_path / "engine.py").write_text("level = 2")
    (tmp_path / "rules.py").write_text("a = 1")
    before = code_generation_digest.__wrapped__()
    (tmp_path / "rules.py").write_text("a = 2")
    assert code_generation_digest.__wrapped__() == before
    (tmp_path / "engine.py").write_text("level = 3")
    assert code_generation_digest.__wrapped__() != before


def test_files_that_generate_code_are_those_that_call_llvm() -> None:
    """What sets passes, levels or architectures is listed."""
    folder = Path(module.__file__).parent.parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"create_pass_builder|create_target_machine|--gpu-name", path.read_text())
    }
    assert found <= {*module._CODE_GENERATION}
