"""Memory that all programs on one stream share for what lives inside them.

Programs on a stream run one after another, and nothing inside a program outlives its call: what
the largest of them needs is enough for all.  A binding that was made before the memory grew is
stale, and lets go of it.  The memory is held by those who use it, and goes with the last of them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import torch


class User(Protocol):
    """Holds the memory of an arena, until it is told to let go."""

    def release(self) -> None: ...


class Arena:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.users: WeakSet[User] = WeakSet()
        self.memory: Callable[[], torch.Tensor | None] = lambda: None
        """What there is, if anyone uses it."""
        self.busy = threading.Lock()

    def take(self, count: int, user: User) -> torch.Tensor:
        """At least `count` bytes, for one call at a time."""
        memory = self.memory()
        if memory is None or count > memory.numel():
            # The old memory first: the new one may lie where it was.
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
    with _LOCK:
        key = (device, stream)
        if key not in _ARENAS:
            _ARENAS[key] = Arena(device)
        return _ARENAS[key]
