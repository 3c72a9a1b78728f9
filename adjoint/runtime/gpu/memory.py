"""Memory for temporaries, shared by all programs on a stream.

Programs on a stream run one after another, and no temporary outlives its call: the memory that the
largest program needs is enough for all.  When it grows, existing bindings become stale and release
the old memory.  It is freed with the last binding that uses it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import torch


class User(Protocol):
    """Refers to the memory of an arena until it is released."""

    def release(self) -> None: ...


class Arena:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.users: WeakSet[User] = WeakSet()
        self.memory: Callable[[], torch.Tensor | None] = lambda: None
        """The current memory, if a binding still uses it."""
        self.busy = threading.Lock()

    def take(self, count: int, user: User) -> torch.Tensor:
        """At least `count` bytes, for one call at a time."""
        memory = self.memory()
        if memory is None or count > memory.numel():
            # Free the old memory first, so that the allocator can reuse it.
            memory = None
            for each in list(self.users):
                each.release()
            self.users.clear()
            memory = torch.empty(count, dtype=torch.uint8, device=self.device)
            self.memory = weakref.ref(memory)
        self.users.add(user)
        return memory


_ARENAS: dict[tuple[torch.device, int], Arena] = {}
_LOCK = threading.Lock()


def arena_of(device: torch.device, stream: int) -> Arena:
    """The arena of a stream."""
    with _LOCK:
        key = (device, stream)
        if key not in _ARENAS:
            _ARENAS[key] = Arena(device)
        return _ARENAS[key]
