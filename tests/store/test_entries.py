from __future__ import annotations

import hashlib
import json

import pytest

from adjoint.store.entries import (
    MAGIC,
    DamagedEntry,
    Entry,
    Header,
    digest_of,
    header_of,
    key_of,
    packed,
    unpacked,
)

FACTS = {"subject": digest_of("text"), "cpu": "one"}
ENTRY = Entry(Header("object", FACTS, "a label", "a reason"), b"payload\0" * 9)


def with_header(text: bytes, payload: bytes = b"") -> bytes:
    """A file with this header and the right digest."""
    rest = len(text).to_bytes(4, "little") + text + payload
    return MAGIC + hashlib.sha256(rest).digest() + rest


def test_what_is_packed_is_unpacked() -> None:
    assert unpacked(packed(ENTRY)) == ENTRY
    assert unpacked(packed(Entry(Header("ptx", {}), b""))) == Entry(Header("ptx", {}), b"")


def test_the_header_can_be_read_alone() -> None:
    assert header_of(packed(ENTRY)) == ENTRY.header


def test_every_flipped_bit_is_found() -> None:
    data = packed(ENTRY)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(DamagedEntry):
                unpacked(bytes(flipped))


def test_every_missing_end_is_found() -> None:
    data = packed(ENTRY)
    for length in range(len(data)):
        with pytest.raises(DamagedEntry):
            unpacked(data[:length])
    with pytest.raises(DamagedEntry):
        unpacked(data + b"\0")


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"\xff\xff", b"[" * 100_000],
)
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    """Also if the digest is right."""
    with pytest.raises(DamagedEntry):
        unpacked(with_header(header))


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ([], "its header has other fields"),
        ({"kind": "object"}, "its header has other fields"),
        (
            {"kind": "", "facts": {}, "label": "", "because": "", "x": ""},
            "its header has other fields",
        ),
        (
            {"kind": 1, "facts": {}, "label": "", "because": ""},
            "its header has something other than text",
        ),
        (
            {"kind": "", "facts": [], "label": "", "because": ""},
            "its header has something other than text",
        ),
        (
            {"kind": "", "facts": {"a": 1}, "label": "", "because": ""},
            "its header has something other than text",
        ),
    ],
)
def test_a_header_of_other_fields_is_refused(header: object, what: str) -> None:
    with pytest.raises(DamagedEntry, match=what):
        unpacked(with_header(json.dumps(header).encode()))


def test_a_sound_header_is_read() -> None:
    fields = {"kind": "object", "facts": {"a": "b"}, "label": "", "because": ""}
    entry = unpacked(with_header(json.dumps(fields).encode(), b"payload"))
    assert (entry.header.kind, dict(entry.header.facts), entry.payload) == (
        "object",
        {"a": "b"},
        b"payload",
    )


def test_keys_are_those_of_facts() -> None:
    assert key_of("object", {"a": "1", "b": "2"}) == key_of("object", {"b": "2", "a": "1"})
    keys = {
        key_of("object", {"a": "1", "b": "2"}),
        key_of("program", {"a": "1", "b": "2"}),
        key_of("object", {"a": "1b", "": "2"}),
        key_of("object", {"a": "1"}),
    }
    assert len(keys) == 4
