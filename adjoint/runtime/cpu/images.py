"""Machine code that is mapped into this process as it is: no loader, no relocations.

An image is position-independent: references inside of it are relative.  Functions outside are
called through a table of addresses in the image, which is filled before the code becomes
executable.  Memory is never writable and executable at the same time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WORD_BYTES = 8


class Unmappable(Exception):
    """The image cannot be mapped; the message says why."""


@dataclass(frozen=True)
class Image:
    """Machine code that runs at any address."""

    code: bytes
    functions: Mapping[str, int]
    """For each function that it defines, its offset."""
    imports: tuple[str, ...]
    """The functions that it calls."""
    table: int
    """Offset of the table of their addresses."""

    def check(self) -> None:
        """Raise `Unmappable` unless every offset is one in the code."""
        end = self.table + WORD_BYTES * len(self.imports)
        if self.table % WORD_BYTES or not 0 <= self.table <= end <= len(self.code):
            raise Unmappable("the table of addresses lies outside of the code")
        for name, offset in self.functions.items():
            if not 0 <= offset < len(self.code):
                raise Unmappable(f"the function {name} lies outside of the code")


class MappedImage:
    """An image in memory: the code is there for as long as this object."""

    def __init__(self, image: Image, address_of: Callable[[str], int | None]) -> None:
        """`address_of` finds the functions that the image calls.  Raises `Unmappable`."""
        image.check()
        addresses = {name: address_of(name) for name in image.imports}
        missing = [name for name, address in addresses.items() if not address]
        if missing:
            raise Unmappable(f"this process has no function {', '.join(missing)}")
        self.image = image
        if not image.code:
            return
        try:
            self._memory = mmap.mmap(
                -1, len(image.code), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, _READ | _WRITE
            )
        except (OSError, AttributeError) as error:
            raise Unmappable(f"there is no memory for it: {error}") from error
        self._memory[:] = image.code
        words = [(address or 0).to_bytes(WORD_BYTES, "little") for address in addresses.values()]
        self._memory[image.table : image.table + WORD_BYTES * len(words)] = b"".join(words)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        _protect(self._start, len(image.code))

    def address(self, name: str) -> int:
        """The address of a function of the image."""
        return self._start + self.image.functions[name]


_READ = getattr(mmap, "PROT_READ", 1)
_WRITE = getattr(mmap, "PROT_WRITE", 2)
_EXECUTE = getattr(mmap, "PROT_EXEC", 4)


def _protect(start: int, length: int) -> None:
    """Make whole pages executable, and no longer writable."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if library.mprotect(start, length, _READ | _EXECUTE):
        why = os.strerror(ctypes.get_errno())
        raise Unmappable(f"memory cannot be made executable: {why}")
