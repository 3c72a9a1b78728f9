from __future__ import annotations

import ctypes

import pytest

from adjoint.runtime.cpu import linking
from adjoint.runtime.cpu.engine import compile_object
from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.images import MappedImage
from adjoint.runtime.cpu.linking import Unlinkable, linked
from adjoint.runtime.cpu.machines import host

TABLE = """\
declare float @floorf(float)
@table = internal constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
define float @shifted(float %x, i64 %i) {
  %p = getelementptr float, ptr @table, i64 %i
  %v = load float, ptr %p
  %y = call float @floorf(float %x)
  %z = fadd float %y, %v
  ret float %z
}
"""

CALLED = """\
define internal i64 @hidden(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @tripled(i64 %x) {
  %y = call i64 @hidden(i64 %x)
  ret i64 %y
}
"""

CALLING = """\
declare i64 @tripled(i64)
define i64 @more(i64 %x) {
  %y = call i64 @tripled(i64 %x)
  %z = add i64 %y, 1
  ret i64 %z
}
"""


def compiled(text: str, may_move: bool = True) -> bytes:
    return compile_object(text, host(), may_move=may_move)


def test_an_image_has_constants_and_calls_the_process() -> None:
    image = linked([("", compiled(TABLE))])
    assert image.imports == ("floorf",)
    code = MappedImage(image, external)
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_int64)
    assert kind(code.address("shifted"))(2.5, 3) == 6.0


def test_objects_call_each_other() -> None:
    image = linked([("a.", compiled(CALLING)), ("", compiled(CALLED)), ("b.", compiled(CALLED))])
    assert image.imports == ()
    assert image.functions.keys() == {"a.more", "tripled", "b.tripled"}
    code = MappedImage(image, external)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert kind(code.address("a.more"))(5) == 16
    assert kind(code.address("b.tripled"))(5) == 15


def test_an_image_is_where_it_is_mapped() -> None:
    image = linked([("", compiled(CALLED))])
    codes = [MappedImage(image, external) for _ in range(3)]
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [kind(code.address("tripled"))(2) for code in codes] == [6, 6, 6]
    assert len({code.address("tripled") for code in codes}) == 3


def test_two_functions_of_one_name_are_refused() -> None:
    with pytest.raises(Unlinkable, match="tripled is defined twice"):
        linked([("", compiled(CALLED)), ("", compiled(CALLED))])


def test_data_that_can_be_written_is_refused() -> None:
    text = "@state = global i64 1\ndefine ptr @f() {\n  ret ptr @state\n}\n"
    with pytest.raises(Unlinkable, match=r"the section \.data is neither code nor constants"):
        linked([("", compiled(text))])


def test_absolute_addresses_are_refused() -> None:
    text = "define i64 @f() {\n  ret i64 1\n}\n@known = constant ptr @f\n"
    with pytest.raises(Unlinkable):
        linked([("", compiled(text))])
    with pytest.raises(Unlinkable, match="relocation of kind"):
        linked([("", compiled(TABLE, may_move=False))])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is no object file: unpack_from requires"),
        (b"\x7fELF", "it is no object file: unpack_from requires"),
        (b"\x7fELF\x02\x01" + b"\0" * 100, "it is no object file for 64-bit x86"),
    ],
)
def test_what_is_no_object_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Unlinkable, match=why):
        linked([("", data)])


def test_a_truncated_object_is_refused() -> None:
    data = compiled(TABLE)
    for length in range(0, len(data), 97):
        with pytest.raises(Unlinkable):
            linked([("", data[:length])])


def test_a_symbol_without_a_section_is_refused() -> None:
    text = "@state = common global i64 0\ndefine ptr @f() {\n  ret ptr @state\n}\n"
    with pytest.raises(Unlinkable, match="state is in no section"):
        linked([("", compiled(text))])


def test_a_section_outside_of_the_file_is_refused() -> None:
    data = bytearray(compiled(TABLE))
    header = linking._HEADER.unpack_from(data)
    start, size, count = header[6], header[11], header[12]
    for at in range(start, start + size * count, size):
        fields = list(linking._SECTION.unpack_from(data, at))
        if fields[1] == linking._SYMBOL_TABLE:
            fields[5] *= 1000
            linking._SECTION.pack_into(data, at, *fields)
    with pytest.raises(Unlinkable, match="a section lies outside of the file"):
        linked([("", bytes(data))])
