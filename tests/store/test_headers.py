from __future__ import annotations

import json
import struct

import pytest

from adjoint.store.headers import BadHeader, read_header

LENGTH = struct.Struct("<I")


def written(said: object) -> bytes:
    text = json.dumps(said).encode()
    return LENGTH.pack(len(text)) + text


def test_a_header_is_read_and_where_it_ends() -> None:
    data = written({"a": [1, 2]}) + b"the rest"
    for view in (data, memoryview(data)):
        said, end = read_header(view, LENGTH, 100)
        assert said == {"a": [1, 2]}
        assert bytes(view[end:]) == b"the rest"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\1\0", "ends before its header"),
        (LENGTH.pack(9) + b"{}", "would have 9 bytes"),
        (written("x" * 200), "would have 202 bytes"),
        (LENGTH.pack(1) + b"{", "is no JSON"),
        (LENGTH.pack(2) + b"\xff\xff", "is no JSON"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadHeader, match=why):
        read_header(data, LENGTH, 100)


def test_depth_is_bounded() -> None:
    depth = 100_000
    data = LENGTH.pack(2 * depth) + b"[" * depth + b"]" * depth
    with pytest.raises(BadHeader, match="is no JSON"):
        read_header(data, LENGTH, 4 * depth)
