from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest

from adjoint.runtime.cpu.images import Image, MappedImage, Unmappable, _protect

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
    with pytest.raises(Unmappable, match="this process has no function there_is_no_such_function"):
        MappedImage(image, lambda name: None)


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (Image(CODE, {"f": 16}, (), 0), "the function f lies outside"),
        (Image(CODE, {"f": -1}, (), 0), "the function f lies outside"),
        (Image(CODE, {}, ("a", "b"), 8), "the table of addresses lies outside"),
        (Image(CODE, {}, ("a",), 4), "the table of addresses lies outside"),
        (Image(CODE, {}, ("a",), -8), "the table of addresses lies outside"),
        (Image(CODE, {}, ("a",), 24), "the table of addresses lies outside"),
    ],
)
def test_offsets_outside_are_refused(image: Image, what: str) -> None:
    with pytest.raises(Unmappable, match=f"{what} of the code"):
        MappedImage(image, lambda name: 1)


def test_pages_that_no_one_mapped_cannot_be_made_executable() -> None:
    with pytest.raises(Unmappable, match="memory cannot be made executable: Cannot allocate"):
        _protect(0, mmap.PAGESIZE)


def test_no_code_is_no_memory() -> None:
    MappedImage(Image(b"", {}, (), 0), lambda name: None)
