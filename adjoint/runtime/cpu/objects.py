"""The symbols of a 64-bit little-endian object file, ELF or Mach-O.

Code generation may add calls that the IR does not have; they are visible only in the object file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Symbols:
    defined: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)


class UnknownFormat(ValueError):
    """Neither ELF nor Mach-O."""


# What reading an image raises if it is no object.
MALFORMED = (ValueError, IndexError, OverflowError, struct.error)


def symbols_of(image: bytes) -> Symbols:
    """The external symbols that an object defines, and those that it leaves undefined."""
    if image[:6] == b"\x7fELF\x02\x01":
        entries = _elf(image)
    elif image[:4] == b"\xcf\xfa\xed\xfe":
        entries = _mach_o(image)
    else:
        raise UnknownFormat(f"an object that begins with {image[:6].hex()}")
    found = Symbols()
    for name, is_defined in entries:
        (found.defined if is_defined else found.undefined).add(name)
    return found


# Of a section header: type, offset, size and, of a symbol table, the section of its names.
_SYMBOL_TABLE = 2
_SECTION = struct.Struct("<4xI16xQQI20x")
_ELF_SYMBOL = struct.Struct("<IBxH16x")


def _elf(image: bytes) -> Iterator[tuple[str, bool]]:
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [_SECTION.unpack_from(image, start + n * size) for n in range(count)]
    for kind, offset, length, link in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[link][1]
        for name, info, section in _ELF_SYMBOL.iter_unpack(image[offset : offset + length]):
            # Sections have no name; symbols of local binding are not external.
            if name and (info >> 4 or not section):
                yield _text(image, names + name), bool(section)


_SYMTAB = 2
_EXTERNAL, _TYPE_MASK, _IN_SECTION = 0x01, 0x0E, 0x0E
_MACH_O_SYMBOL = struct.Struct("<IBxxxQ")


def _mach_o(image: bytes) -> Iterator[tuple[str, bool]]:
    (count,) = struct.unpack_from("<I", image, 16)
    at = 32
    for _ in range(count):
        command, length = struct.unpack_from("<II", image, at)
        if command == _SYMTAB:
            offset, entries, names = struct.unpack_from("<III", image, at + 8)
            table = image[offset : offset + entries * _MACH_O_SYMBOL.size]
            for name, kind, _value in _MACH_O_SYMBOL.iter_unpack(table):
                if kind & _EXTERNAL:
                    # The names of C have an underscore before them.
                    yield _text(image, names + name)[1:], kind & _TYPE_MASK == _IN_SECTION
        at += length


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()
