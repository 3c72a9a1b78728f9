"""Memory for temporaries, shared by all programs on a stream.

Programs on a stream run one after another, and no temporary outlives its call: the memory that the
largest program needs is enough for all.  When it grows, leases of the old memory become stale, and
that memory is freed with the last of them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import torch

from adjoint.runtime.plans.layout import grown


class User(Protocol):
    """An object that has tensors in the memory of an arena."""

    def release(self) -> None:
        """Drop these tensors."""
        ...


class Lease:
    """Memory that may be used until it is stale."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.is_stale = False
        self.users: WeakSet[User] = WeakSet()

    def release(self) -> None:
        """Drop the memory, even if the lease is still referenced."""
        self.is_stale = True
        self.memory = NO_MEMORY
        for user in list(self.users):
            user.release()
        self.users.clear()


NO_MEMORY = torch.empty(0, dtype=torch.uint8, device="cpu")


class Arena:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lease: Callable[[], Lease | None] = lambda: None
        """A weak reference to the current memory."""
        self.busy = threading.Lock()

    def lease(self, count: int) -> Lease:
        """At least `count` bytes, for one call at a time."""
        lease = self._lease()
        if lease is None or count > lease.memory.numel():
            if lease is not None:
                count = grown(count, lease.memory.numel())
                # Free the old memory first, so that the allocator can reuse it.
                lease.release()
            lease = Lease(torch.empty(count, dtype=torch.uint8, device=self.device))
            self._lease = weakref.ref(lease)
        return lease


_ARENAS: dict[tuple[torch.device, int], Arena] = {}
_LOCK = threading.Lock()


def arena_of(device: torch.device, stream: int) -> Arena:
    """The arena of a stream."""
    with _LOCK:
        key = (device, stream)
        if key not in _ARENAS:
            _ARENAS[key] = Arena(device)
        return _ARENAS[key]
