"""The file of one cache entry: a digest of the rest, a header, and the payload.

    adjoint entry 1\\n | SHA-256 of the rest | length of the header | header, JSON | payload

The digest detects damage, such as flipped bits and truncation.  It does not detect forgery: who can
write the file is checked by its owner and mode (`folder.py`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from adjoint.store.headers import BadHeader, read_header

MAGIC = b"adjoint entry 1\n"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")
_PREFIX_BYTES = len(MAGIC) + _DIGEST_BYTES + _LENGTH.size

# A header has a few facts, of at most a line each.
MAX_HEADER_BYTES = 1 << 18

# Facts by name.  `subject` is the digest of what was compiled.
Facts: TypeAlias = Mapping[str, str]


class DamagedEntry(Exception):
    """The file is not a valid entry; the message says why."""


@dataclass(frozen=True)
class Header:
    kind: str
    """`object`, `program`, ..."""
    facts: Facts
    label: str = ""
    """The user's line that it was compiled for."""
    because: str = ""
    """Why it was compiled although there were entries of the same subject."""

    @property
    def key(self) -> str:
        return key_of(self.kind, self.facts)


@dataclass(frozen=True)
class Entry:
    header: Header
    payload: bytes


def digest_of(content: bytes | str) -> str:
    """The digest that stands for a text or payload among facts."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def key_of(kind: str, facts: Facts) -> str:
    """Equal for equal facts; the order in which they are given does not matter."""
    return digest_of(json.dumps([kind, sorted(facts.items())]))


def packed(entry: Entry) -> bytes:
    """The bytes of an entry."""
    header = entry.header
    fields = {
        "kind": header.kind,
        "facts": dict(header.facts),
        "label": header.label,
        "because": header.because,
    }
    text = json.dumps(fields).encode()
    rest = _LENGTH.pack(len(text)) + text + entry.payload
    return MAGIC + hashlib.sha256(rest).digest() + rest


def unpacked(data: bytes) -> Entry:
    """The entry in these bytes; raises `DamagedEntry`."""
    if not data.startswith(MAGIC):
        raise DamagedEntry("it does not begin as an entry does")
    start = len(MAGIC) + _DIGEST_BYTES
    rest = memoryview(data)[start:]
    if hashlib.sha256(rest).digest() != data[len(MAGIC) : start]:
        raise DamagedEntry("its digest is that of other bytes")
    header, used = _header(bytes(rest[: _LENGTH.size + MAX_HEADER_BYTES]))
    return Entry(header, bytes(rest[used:]))


def header_of(beginning: bytes) -> Header:
    """The header alone, from the first bytes of a file; it is not verified."""
    if not beginning.startswith(MAGIC):
        raise DamagedEntry("it does not begin as an entry does")
    return _header(beginning[len(MAGIC) + _DIGEST_BYTES :])[0]


header_bytes = _PREFIX_BYTES + MAX_HEADER_BYTES


def _header(rest: bytes) -> tuple[Header, int]:
    """The header, and how many bytes it has with its length."""
    try:
        fields, end = read_header(rest, _LENGTH, MAX_HEADER_BYTES)
    except BadHeader as error:
        raise DamagedEntry(str(error)) from error
    return _read_header(fields), end


def _read_header(fields: object) -> Header:
    if not isinstance(fields, dict) or fields.keys() != {"kind", "facts", "label", "because"}:
        raise DamagedEntry("its header has other fields")
    facts = fields.pop("facts")
    texts = [*fields.values(), *(facts.items() if isinstance(facts, dict) else ((None, None),))]
    for each in texts:
        if not all(isinstance(text, str) for text in (each if isinstance(each, tuple) else [each])):
            raise DamagedEntry("its header has something other than text")
    return Header(facts=facts, **fields)
