from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from adjoint.errors import CacheWarning
from adjoint.runtime.cpu import engine, machines
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.runtime.cpu.levels import LEVELS
from adjoint.store.keeping import Store, keeping_in

ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"


def test_text_becomes_a_function() -> None:
    (function,) = load(ADD, ["add"])
    add = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(function.address)
    assert add(2, 40) == 42


def test_two_texts_may_define_one_name() -> None:
    (one,) = load(ADD, ["add"])
    (other,) = load(ADD.replace("add i64", "sub i64"), ["add"])
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert [kind(one.address)(5, 3), kind(other.address)(5, 3)] == [8, 2]


@pytest.mark.parametrize(
    "text",
    [
        "define nonsense",
        "define i64 @add(i64 %a) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n",
        "define i64 @add(i64 %a) {\n  ret float 1.0\n}\n",
    ],
)
def test_text_that_llvm_refuses(text: str) -> None:
    with pytest.raises(LLVMError):
        load(text, ["add"])
    assert load(ADD, ["add"])[0].address


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(LLVMError, match="nothing"):
        load(ADD, ["nothing"])


def test_a_function_that_no_one_has() -> None:
    text = "declare void @adjoint.no.such()\n" + ADD.replace(
        "%c =", "call void @adjoint.no.such()\n  %c ="
    )
    with pytest.raises(LLVMError, match=r"adjoint\.no\.such"):
        load(text, ["add"])


HALF = """\
define i16 @halved(double %x) {
  %y = fptrunc double %x to half
  %bits = bitcast half %y to i16
  ret i16 %bits
}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_what_code_generation_calls_is_there(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below AVX512-FP16, there is no instruction for it."""
    if machines.missing(level):
        pytest.skip(f"this machine cannot run {level}")
    reduced = machines.reduced(level)
    monkeypatch.setattr(machines, "host", lambda: reduced)
    (function,) = load(HALF, ["halved"])
    halved = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_double)(function.address)
    # By way of float32 it would be rounded twice, to 0x3c00.
    assert [halved(x) for x in (1.0, -2.0, 1 + 2**-11 + 2**-30)] == [0x3C00, 0xC000, 0x3C01]


def test_what_code_generation_calls_and_no_one_defines_is_refused() -> None:
    """The text names no function; on no machine here are there instructions for it."""
    text = "define fp128 @q(fp128 %x) {\n  %y = fadd fp128 %x, %x\n  ret fp128 %y\n}\n"
    with pytest.raises(LLVMError, match="no definition of __addtf3"):
        load(text, ["q"])


PROGRAM = """
import warnings
warnings.simplefilter("error", RuntimeWarning)
import torch
import adjoint
compiled = adjoint.compile(lambda x: (x.exp() * 2).sum(1))
x = torch.arange(6.0).reshape(2, 3)
torch.testing.assert_close(compiled(x), (x.exp() * 2).sum(1))
from adjoint.kernels import _KERNELS
assert _KERNELS
"""


def test_no_compiler_and_no_home_are_needed(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    root = Path(__file__).parents[3]
    # A driver of a GPU would write there.
    environment = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(root)}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["ADJOINT_CACHE"] = "off"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    tmp_path.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, 1 << 20)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    with keeping_in(store):
        load(ADD, ["add"])
        store.flush()
        with mock.patch.object(engine, "compile_object", side_effect=AssertionError):
            (function,) = load(ADD, ["add"])
            assert kind(function.address)(2, 40) == 42
            with pytest.raises(AssertionError):
                load(ADD, ["add"], is_tuned=False)
        other = replace(machines.host(), cpu="another")
        monkeypatch.setattr(machines, "host", lambda: other)
        compiled = mock.patch.object(engine, "compile_object", side_effect=AssertionError)
        with compiled, pytest.raises(AssertionError):
            load(ADD, ["add"])


@pytest.mark.parametrize("payload", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 99])
def test_what_is_no_object_is_compiled_again(tmp_path: Path, payload: bytes) -> None:
    """Although its digest is right."""
    store = Store(tmp_path, 1 << 20)
    with keeping_in(store):
        load(ADD, ["add"])
        store.flush()
        (kept,) = store.folder.entries()
        store.put("object", kept.header.facts, payload)
        store.flush()
        with pytest.warns(CacheWarning, match="made again: it is no object file: "):
            assert load(ADD, ["add"])[0].address
        store.flush()
        kept_again = store.get("object", kept.header.facts)
    assert kept_again is not None
    assert len(kept_again) > 200
