"""Garbage collection while something is compiled.

A full collection visits every object of the process, which with torch are a million: about 0.3
seconds each.  Compiling makes enough objects for several, and hardly any of them is garbage.  Where
threads compile without end, one comes now and then, or garbage would grow without a bound.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# While threads compile, a full collection comes after this many new objects: about 20 seconds of
# compiling.
_MAX_NEW_OBJECTS = 500_000

_LOCK = threading.Lock()
# How many compilations are going on, in all threads, and the threshold before the first of them.
_GOING_ON: list[int] = []


@contextlib.contextmanager
def full_collections_wait() -> Iterator[None]:
    """Meanwhile young objects are collected as always; old ones are collected afterwards."""
    with _LOCK:
        young, middle, full = gc.get_threshold()
        _GOING_ON.append(full)
        gc.set_threshold(young, middle, _rare(young, middle))
    try:
        yield
    finally:
        with _LOCK:
            before = _GOING_ON[0]
            _GOING_ON.pop()
            young, middle, full = gc.get_threshold()
            # Another value is the user's, set meanwhile.
            if not _GOING_ON and full == _rare(young, middle):
                gc.set_threshold(young, middle, before)


def _rare(young: int, middle: int) -> int:
    """The threshold of full collections meanwhile: the number of collections of the middle
    generation that come first."""
    return _MAX_NEW_OBJECTS // max(1, young * middle)
