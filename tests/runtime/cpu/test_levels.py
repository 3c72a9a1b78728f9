from __future__ import annotations

import platform

import pytest

from adjoint.runtime.cpu import levels, machines
from adjoint.runtime.cpu.levels import LEVELS, features_of, lacking


@pytest.mark.parametrize("level", LEVELS)
def test_llvm_says_the_same(level: str) -> None:
    assert lacking(level) == machines.missing(level)


def test_levels_add_features() -> None:
    counts = [len(features_of(level)) for level in LEVELS]
    assert counts == sorted(set(counts))


def test_a_processor_without_a_feature_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_flags", lambda: frozenset({"sse2", "avx2"}))
    assert "avx2" not in lacking("x86-64-v3")
    assert "sse4.1" in lacking("x86-64-v3")
    assert lacking("x86-64") == []


def test_another_architecture_has_no_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert lacking("x86-64") == ["x86-64 instructions: it is aarch64"]
