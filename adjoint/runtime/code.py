"""Native functions, whose code is freed with the last reference to them.

A program holds the functions that it calls.  Tables by which programs share functions refer to
them weakly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CodeSource:
    """Where the code of a function is cached: an entry of a store, and the name in it."""

    kind: str
    facts: Mapping[str, str]
    name: str


@dataclass(frozen=True, eq=False)
class NativeFunction:
    address: int
    owner: object
    """Frees the code when it is garbage-collected: an LLVM engine, or a loaded CUDA module."""
    source: CodeSource | None = None
    """None: the code is not cached."""
