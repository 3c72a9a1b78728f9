from __future__ import annotations

import ctypes

import pytest

from adjoint.runtime.cpu import engine
from adjoint.runtime.cpu.residents import bring, key_of, resident

TEXT = "define i64 @{name}() {{\n  ret i64 11\n}}\n"


def test_glue_is_compiled_when_it_is_needed() -> None:
    text = TEXT.format(name="resident.one")
    address = resident(text, "resident.one")
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == 11


def test_glue_that_was_brought_along_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "load_resident", lambda text, name: pytest.fail("compiled"))
    text = TEXT.format(name="resident.two")
    bring({key_of(text, "resident.two"): 4096})
    assert resident(text, "resident.two") == 4096
    # The first stays: programs have its address.
    bring({key_of(text, "resident.two"): 8192})
    assert resident(text, "resident.two") == 4096


def test_another_text_is_other_glue() -> None:
    assert key_of("a", "f") != key_of("b", "f")
    assert key_of("a", "f") != key_of("a", "g")
