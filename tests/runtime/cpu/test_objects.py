from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from adjoint.runtime.cpu.engine import compile_object
from adjoint.runtime.cpu.machines import host
from adjoint.runtime.cpu.objects import Symbols, UnknownFormat, symbols_of
from adjoint.target import Machine

TEXT = """\
@shown = global i64 7
@hidden = internal global i64 8
declare i64 @elsewhere(i64)
declare i64 @not.called(i64)
define i64 @here(i64 %x) {
  %hidden = load volatile i64, ptr @hidden
  %y = add i64 %x, %hidden
  %z = call i64 @elsewhere(i64 %y)
  %w = call i64 @inner(i64 %z)
  ret i64 %w
}
define internal i64 @inner(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
"""


@pytest.mark.parametrize(
    ("triple", "cpu"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-apple-macosx", "x86-64"),
        ("aarch64-unknown-linux-gnu", "generic"),
        ("arm64-apple-macosx", "apple-m1"),
    ],
)
def test_what_an_object_defines_and_what_it_lacks(triple: str, cpu: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    found = symbols_of(compile_object(TEXT, Machine(triple, cpu)))
    assert found == Symbols(defined={"shown", "here"}, undefined={"elsewhere"})


HALVES = """\
define half @down(double %x) {
  %y = fptrunc double %x to half
  ret half %y
}
"""


@pytest.mark.parametrize(
    ("cpu", "called"), [("x86-64-v3", {"__truncdfhf2"}), ("sapphirerapids", set())]
)
def test_what_code_generation_adds_depends_on_the_machine(cpu: str, called: set[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = Machine("x86_64-unknown-linux-gnu", cpu)
    assert symbols_of(compile_object(HALVES, machine)).undefined == called


def test_another_format_is_not_guessed_at() -> None:
    with pytest.raises(UnknownFormat, match="an object that begins with 4d5a"):
        symbols_of(b"MZ" + bytes(64))


def test_the_format_of_this_machine_is_known() -> None:
    assert symbols_of(compile_object(TEXT, host())).undefined == {"elsewhere"}
