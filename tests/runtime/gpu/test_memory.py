from __future__ import annotations

import weakref

import torch

from adjoint.runtime.gpu.memory import Arena, arena_of

CPU = torch.device("cpu")


class Tenant:
    def __init__(self) -> None:
        self.left = False

    def release(self) -> None:
        self.left = True


def test_programs_share_memory_until_it_grows() -> None:
    arena, first, second = Arena(CPU), Tenant(), Tenant()
    lease = arena.lease(100)
    lease.users.update((first, second))
    assert arena.lease(80) is lease
    larger = arena.lease(200)
    assert larger.memory.numel() >= 200
    assert lease.is_stale
    assert lease.memory.numel() == 0
    assert [each.left for each in (first, second)] == [True, True]


def test_memory_goes_with_the_last_who_uses_it() -> None:
    arena = Arena(CPU)
    lease = arena.lease(100)
    memory = weakref.ref(lease.memory)
    assert arena.lease(50) is lease
    del lease
    assert memory() is None
    assert arena.lease(50).memory.numel() == 50


def test_each_stream_has_its_own() -> None:
    assert arena_of(CPU, 1) is arena_of(CPU, 1)
    assert arena_of(CPU, 1) is not arena_of(CPU, 2)
