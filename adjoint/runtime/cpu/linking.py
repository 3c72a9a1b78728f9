"""A linker of object files into an image (`images.py`), for the few kinds of sections and
relocations that an image has.

Objects are ELF files that LLVM made for 64-bit x86, position-independent: references inside are
relative, and functions outside are called.  Anything else in them - data that can be written,
absolute addresses, kinds of relocations that are not listed - is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from adjoint.runtime.cpu.images import WORD_BYTES, Image

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DISTANCE = struct.Struct("<i")

_RELOCATABLE, _X86_64 = 1, 62
_PROGRAM, _SYMBOL_TABLE, _RELOCATIONS = 1, 2, 4
_WRITABLE, _IN_MEMORY = 1, 2
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00
_LOCAL = 0

# Relocations: a distance to a symbol, the same for a call, and three to the symbol's word in the
# table of addresses.
_TO_SYMBOL = frozenset({2, 4})
_TO_TABLE = frozenset({9, 41, 42})

# jmp *[rip + distance]: a call of a function outside goes there.
_JUMP = b"\xff\x25"
_JUMP_BYTES = 8

# Sections that only say how to unwind the stack, which nothing here does.
_IGNORED = (".eh_frame",)

ALIGNMENT_BYTES = 64


class Unlinkable(Exception):
    """The objects do not make an image; the message says why."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    is_local: bool
    section: int
    value: int


class _Object:
    """One object file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self._read()
        except (struct.error, IndexError, ValueError) as error:
            raise Unlinkable(f"it is no object file: {error}") from error

    def _read(self) -> None:
        header = _HEADER.unpack_from(self.data)
        if header[0][:6] != b"\x7fELF\x02\x01" or header[1:3] != (_RELOCATABLE, _X86_64):
            raise Unlinkable("it is no object file for 64-bit x86")
        start, size, count, names = header[6], header[11], header[12], header[13]
        raw = [_SECTION.unpack_from(self.data, start + n * size) for n in range(count)]
        base = raw[names][4]
        self.sections = [
            _Section(self._text(base + n), kind, flags, offset, length, link, info, align or 1)
            for n, kind, flags, _, offset, length, link, info, align, _ in raw
        ]
        self.symbols: list[_Symbol] = []
        for section in self.sections:
            if section.kind == _SYMBOL_TABLE:
                texts = self.sections[section.link].offset
                for n, info, _, index, value, _ in _SYMBOL.iter_unpack(self._content(section)):
                    is_local = info >> 4 == _LOCAL
                    if index >= _FIRST_RESERVED and not is_local:
                        raise Unlinkable(f"{self._text(texts + n)} is in no section")
                    self.symbols.append(_Symbol(self._text(texts + n), is_local, index, value))

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def _content(self, section: _Section) -> bytes:
        content = self.data[section.offset : section.offset + section.size]
        if len(content) != section.size:
            raise Unlinkable("a section lies outside of the file")
        return content

    def in_memory(self) -> dict[int, tuple[_Section, bytes]]:
        """The sections that the code consists of, by their numbers."""
        found: dict[int, tuple[_Section, bytes]] = {}
        for number, section in enumerate(self.sections):
            if not section.flags & _IN_MEMORY or not section.size or section.name in _IGNORED:
                continue
            if section.kind != _PROGRAM or section.flags & _WRITABLE:
                raise Unlinkable(f"the section {section.name} is neither code nor constants")
            found[number] = section, self._content(section)
        return found

    def relocations(self) -> list[tuple[int, int, int, _Symbol, int]]:
        """Section and offset of what is to be computed, its kind, the symbol, and what is added."""
        found: list[tuple[int, int, int, _Symbol, int]] = []
        for section in self.sections:
            if section.kind == _RELOCATIONS:
                for offset, info, addend in _RELOCATION.iter_unpack(self._content(section)):
                    symbol = self.symbols[info >> 32]
                    found.append((section.info, offset, info & 0xFFFFFFFF, symbol, addend))
        return found


def linked(objects: Sequence[tuple[str, bytes]]) -> Image:
    """The image of object files; raises `Unlinkable`.

    Each has a label, which comes before the names of the functions that it defines.  Objects find
    each other's functions if the label is empty.
    """
    labels = [label for label, _ in objects]
    read = [_Object(data) for _, data in objects]
    code = bytearray()
    places: dict[tuple[int, int], int] = {}
    for number, each in enumerate(read):
        for index, (section, content) in each.in_memory().items():
            code += b"\0" * (-len(code) % max(section.alignment, ALIGNMENT_BYTES))
            places[number, index] = len(code)
            code += content
    functions: dict[str, int] = {}
    for number, each in enumerate(read):
        for symbol in each.symbols:
            if symbol.is_local or symbol.section == _UNDEFINED:
                continue
            name = labels[number] + symbol.name
            if name in functions:
                raise Unlinkable(f"{name} is defined twice")
            functions[name] = places[number, symbol.section] + symbol.value
    imports = sorted(
        {
            symbol.name
            for each in read
            for symbol in each.symbols
            if symbol.section == _UNDEFINED and symbol.name and symbol.name not in functions
        }
    )
    code += b"\0" * (-len(code) % ALIGNMENT_BYTES)
    jumps = len(code)
    table = jumps + _JUMP_BYTES * len(imports)
    words = {name: table + WORD_BYTES * place for place, name in enumerate(imports)}
    stubs = {name: jumps + _JUMP_BYTES * place for place, name in enumerate(imports)}
    for name in imports:
        distance = words[name] - (stubs[name] + len(_JUMP) + _DISTANCE.size)
        code += (_JUMP + _DISTANCE.pack(distance)).ljust(_JUMP_BYTES, b"\xcc")
    code += b"\0" * (WORD_BYTES * len(imports))
    for number, each in enumerate(read):
        for index, offset, kind, symbol, addend in each.relocations():
            if (number, index) not in places:
                continue
            at = places[number, index] + offset
            to = _target(kind, symbol, number, places, functions, words, stubs)
            _DISTANCE.pack_into(code, at, to + addend - at)
    return Image(bytes(code), functions, tuple(imports), table)


def _target(
    kind: int,
    symbol: _Symbol,
    number: int,
    places: dict[tuple[int, int], int],
    functions: dict[str, int],
    words: dict[str, int],
    stubs: dict[str, int],
) -> int:
    """The place in the image that a relocation refers to: it stores the distance to that."""
    is_outside = symbol.section == _UNDEFINED and symbol.name in words
    if kind in _TO_TABLE and is_outside:
        return words[symbol.name]
    if kind in _TO_SYMBOL:
        if is_outside:
            return stubs[symbol.name]
        if symbol.section == _UNDEFINED:
            return functions[symbol.name]
        return places[number, symbol.section] + symbol.value
    raise Unlinkable(f"a relocation of kind {kind} for {symbol.name or 'a section'}")
