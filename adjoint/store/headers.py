"""A header in front of other bytes: its length, then JSON."""

from __future__ import annotations

import json
import struct


class BadHeader(ValueError):
    """The bytes do not begin with a header; the message says why."""


def read_header(
    data: bytes | memoryview, length: struct.Struct, max_bytes: int
) -> tuple[object, int]:
    """What the header says, and where it ends; `length`: how its length is written."""
    if len(data) < length.size:
        raise BadHeader("it ends before its header")
    (count,) = length.unpack_from(data)
    end = length.size + count
    if count > max_bytes or end > len(data):
        raise BadHeader(f"its header would have {count} bytes")
    try:
        return json.loads(bytes(data[length.size : end])), end
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"its header is no JSON: {error}") from error
