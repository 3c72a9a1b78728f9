"""Memory that all programs on one stream share for what lives inside them.

Programs on a stream run one after another, and nothing inside a program outlives its call: what
the largest of them needs is enough for all.  A binding that was made before the memory grew is
stale, and lets go of it.
"""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet

import torch


class User(Protocol):
    """Has tensors in the memory of an arena, until it is told to let go."""

    def release(self) -> None: ...


class Arena:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.users: WeakSet[User] = WeakSet()
        self.memory = self._new(0)
        self.busy = threading.Lock()

    def _new(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self.device)

    def take(self, count: int, user: User) -> torch.Tensor:
        """At least `count` bytes, for one call at a time."""
        if count > self.memory.numel():
            for each in list(self.users):
                each.release()
            self.users.clear()
            # The old memory first: the new one may lie where it was.
            self.memory = self._new(0)
            self.memory = self._new(count)
        self.users.add(user)
        return self.memory


_ARENAS: dict[tuple[torch.device, int], Arena] = {}
_LOCK = threading.Lock()


def arena_of(device: torch.device, stream: int) -> Arena:
    with _LOCK:
        key = (device, stream)
        if key not in _ARENAS:
            _ARENAS[key] = Arena(device)
        return _ARENAS[key]
