from __future__ import annotations

import torch

from adjoint.runtime.gpu.memory import Arena, arena_of

CPU = torch.device("cpu")


class Tenant:
    def __init__(self) -> None:
        self.left = False

    def release(self) -> None:
        self.left = True


def test_programs_share_memory_until_it_grows() -> None:
    arena, first, second, third = Arena(CPU), Tenant(), Tenant(), Tenant()
    memory = arena.take(100, first)
    assert arena.take(80, second).data_ptr() == memory.data_ptr()
    assert [each.left for each in (first, second)] == [False, False]
    assert arena.take(200, third).numel() >= 200
    assert [each.left for each in (first, second, third)] == [True, True, False]


def test_memory_goes_with_the_last_who_uses_it() -> None:
    arena, tenant = Arena(CPU), Tenant()
    assert arena.memory() is None
    memory = arena.take(100, tenant)
    assert arena.memory() is memory
    del memory
    assert arena.memory() is None
    assert arena.take(50, tenant).numel() == 50


def test_each_stream_has_its_own() -> None:
    assert arena_of(CPU, 1) is arena_of(CPU, 1)
    assert arena_of(CPU, 1) is not arena_of(CPU, 2)
