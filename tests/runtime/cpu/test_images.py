from __future__ import annotations

import re
from pathlib import Path

import pytest

from adjoint.runtime.cpu.images import Image, MappedImage, Unmappable

# mov eax, 7; ret - and a table of one address.
CODE = b"\xb8\x07\x00\x00\x00\xc3".ljust(8, b"\xcc") + b"\0" * 8


def test_memory_is_executable_and_not_writable() -> None:
    code = MappedImage(Image(CODE, {"seven": 0}, ("f",), 8), lambda name: 0x1234)
    at = code.address("seven")
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
        if int(start, 16) <= at < int(end, 16):
            assert mode == "r-xp"
            break
    else:
        pytest.fail("it is not mapped")


def test_what_the_process_does_not_have_is_refused() -> None:
    image = Image(CODE, {"seven": 0}, ("there_is_no_such_function",), 8)
    with pytest.raises(Unmappable, match="there_is_no_such_function"):
        MappedImage(image, lambda name: None)


@pytest.mark.parametrize(
    "image",
    [
        Image(CODE, {"f": 16}, (), 0),
        Image(CODE, {"f": -1}, (), 0),
        Image(CODE, {}, ("a", "b"), 8),
        Image(CODE, {}, ("a",), 4),
        Image(CODE, {}, ("a",), -8),
        Image(CODE, {}, ("a",), 24),
    ],
)
def test_offsets_outside_are_refused(image: Image) -> None:
    with pytest.raises(Unmappable):
        MappedImage(image, lambda name: 1)


def test_no_code_is_no_memory() -> None:
    MappedImage(Image(b"", {}, (), 0), lambda name: None)
