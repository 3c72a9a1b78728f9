from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from adjoint.atlas.reading import MAX_PARSED_BYTES, decoded, is_licence, licence_of, read


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("é\r\nü\r".encode(), "é\nü\n"),
        (codecs.BOM_UTF8 + "é".encode(), "é"),
        ("ж".encode("utf-16"), "ж"),
        ("# coding: latin-1\né".encode("latin-1"), "# coding: latin-1\né"),
    ],
)
def test_text_is_decoded_as_it_says(content: bytes, text: str) -> None:
    found = decoded(content, "Python")
    assert found.text == text
    assert found.problems == ()


def test_bytes_that_mean_nothing_are_named_with_their_line() -> None:
    found = decoded("a = 'é'\n".encode() + b"b = '\xe9'\n", "C")
    assert found.text == "a = 'é'\nb = '\ufffd'\n"
    (problem,) = found.problems
    assert "Line 2 is not valid UTF-8: byte 0xe9" in problem


def test_an_encoding_that_does_not_exist_is_named() -> None:
    found = decoded(b"# coding: klingon\nx = 1\n", "Python")
    assert "klingon" in found.problems[0]
    assert "x = 1" in found.text


def test_what_is_binary_or_too_large_is_not_shown() -> None:
    assert not decoded(b"ELF\0\1", "text").is_text
    large = decoded(b"x" * (MAX_PARSED_BYTES + 1), "Python")
    assert not large.is_text
    assert "over 4 MiB it is not parsed" in large.problems[0]


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    content, text = read(tmp_path / "gone.py", "Python")
    assert content == b""
    assert text.problems == ("The file cannot be read: No such file or directory.",)


def test_licences() -> None:
    assert licence_of("// SPDX-License-Identifier: MIT\n") == "MIT"
    header = "/* Copyright 2020 Ada.\n * Licensed under the Apache License, Version 2.0 */"
    assert licence_of(header) == "Apache License; Copyright 2020 Ada."
    assert licence_of("x = 1\n") == ""
    assert is_licence("Copyright Ada")
    assert not is_licence("Computes a copy of what is right.")
