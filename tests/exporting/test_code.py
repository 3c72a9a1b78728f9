from __future__ import annotations

import platform

import pytest

from adjoint.errors import ExportError
from adjoint.exporting.code import Code, levels
from adjoint.runtime.cpu.levels import lacking
from adjoint.runtime.cpu.support import SUPPORT


def test_the_default_is_the_level_of_this_machine() -> None:
    (level,) = levels(None)
    assert not lacking(level)
    assert levels(["x86-64-v4", "x86-64", "x86-64-v4"]) == ("x86-64-v4", "x86-64")


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(ExportError, match="arm64"):
        levels(None)


def test_a_file_without_kernels_has_glue() -> None:
    (target,) = Code(["x86-64"]).targets()
    assert target.image.functions.keys() == set(target.glue.values())
    assert not SUPPORT.keys() & set(target.image.imports)
