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


def test_each_stream_has_its_own() -> None:
    assert arena_of(CPU, 1) is arena_of(CPU, 1)
    assert arena_of(CPU, 1) is not arena_of(CPU, 2)
