"""Garbage collection while something is compiled.

A full collection visits every object of the process, which with torch are a million: about 0.3
seconds each.  Compiling makes enough objects for several, and hardly any of them is garbage.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# More young collections than happen between two full ones, whatever is compiled.
_NEVER = 1 << 30

_LOCK = threading.Lock()
# How many compilations are going on, in all threads, and the threshold before the first of them.
_GOING_ON: list[int] = []


@contextlib.contextmanager
def full_collections_wait() -> Iterator[None]:
    """Young objects are collected meanwhile as ever, old ones afterwards."""
    with _LOCK:
        young, middle, full = gc.get_threshold()
        _GOING_ON.append(full)
        gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        with _LOCK:
            before = _GOING_ON[0]
            _GOING_ON.pop()
            young, middle, full = gc.get_threshold()
            # Another value is the user's, set meanwhile.
            if not _GOING_ON and full == _NEVER:
                gc.set_threshold(young, middle, before)
