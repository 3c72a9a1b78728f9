"""Reading a file whatever is in it: its text, or why there is none."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

MAX_PARSED_BYTES = 4 << 20
"""Larger files are generated; parsing them costs more than their pages are worth."""

_BINARY_SAMPLE_BYTES = 8192

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Text:
    """The text of a file, and what was wrong with its bytes."""

    text: str
    problems: tuple[str, ...]
    is_text: bool = True
    """Whether it should be parsed and shown; what is binary or too large should not."""


def read(file: Path, language: str) -> tuple[bytes, Text]:
    """The bytes of a file and its text; a file that cannot be read has neither."""
    try:
        content = file.read_bytes()
    except OSError as error:
        return b"", Text("", (f"The file cannot be read: {error.strerror}.",), is_text=False)
    return content, decoded(content, language)


def decoded(content: bytes, language: str) -> Text:
    """The text of these bytes; bytes that mean nothing in its encoding become U+FFFD."""
    if len(content) > MAX_PARSED_BYTES:
        size = len(content) / (1 << 20)
        limit = MAX_PARSED_BYTES >> 20
        return Text(
            "", (f"The file has {size:.1f} MiB; over {limit} MiB it is not parsed.",), False
        )
    encoding = _encoding(content, language)
    if encoding is None and b"\0" in content[:_BINARY_SAMPLE_BYTES]:
        return Text("", ("The file is binary.",), is_text=False)
    encoding = encoding or "utf-8"
    try:
        return Text(_plain(content.decode(encoding)), ())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = (
            f"Line {line} is not valid {encoding.upper()}: byte 0x{content[error.start]:02x}. "
            "Such bytes are shown as U+FFFD."
        )
        return Text(_plain(content.decode(encoding, errors="replace")), (problem,))
    except LookupError:
        problem = (
            f"The file declares an encoding that does not exist: {encoding}. It is read as UTF-8."
        )
        return Text(_plain(content.decode("utf-8", errors="replace")), (problem,))


def _plain(text: str) -> str:
    """The text with one kind of line end, and none of the characters that no page may hold."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _encoding(content: bytes, language: str) -> str | None:
    """The encoding that a byte order mark or a declaration gives."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding
    if language != "Python":
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:
        declared = re.search(rb"coding[:=]\s*([-\w.]+)", content[:200])
        return declared.group(1).decode() if declared else None
    return None if encoding == "utf-8" else encoding


_LICENCES = (
    (re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]+?)\s*(?:\*/|-->|$)", re.MULTILINE), None),
    (re.compile(r"Apache License"), "Apache License"),
    (re.compile(r"\bMIT [Ll]icense|Permission is hereby granted, free of charge"), "MIT License"),
    (re.compile(r"GNU (?:Lesser |Affero )?General Public License"), "GNU GPL family"),
    (re.compile(r"Mozilla Public License"), "Mozilla Public License"),
    (re.compile(r"\bBSD[- ](?:style )?[Ll]icense|Redistribution and use in source"), "BSD License"),
)
_COPYRIGHT = re.compile(
    r"^[^\w]*((?:Copyright|\(c\)|©).*\d{4}.*?)\s*(?:\*/|-->)?$", re.MULTILINE | re.IGNORECASE
)
_HEADER_CHARACTERS = 3000


def licence_of(text: str) -> str:
    """The licence that the head of a file states, and whose it is; empty if it states none."""
    head = text[:_HEADER_CHARACTERS]
    found: list[str] = []
    for pattern, name in _LICENCES:
        match = pattern.search(head)
        if match:
            found.append(name or match.group(1).strip())
            break
    holder = _COPYRIGHT.search(head)
    if holder:
        found.append(holder.group(1).strip())
    return "; ".join(found)


def is_licence(text: str) -> bool:
    """Whether a comment is about the licence rather than the file."""
    return bool(licence_of(text)) or bool(
        re.search(r"\b(licen[cs]e|copyright)\b", text[:400], re.IGNORECASE)
    )
