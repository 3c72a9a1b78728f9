from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adjoint.runtime.cpu import memory
from adjoint.runtime.cpu.memory import PROGRAMS_PER_TRIM, ResultPool, cache_bytes, share
from tests.lowering import program_of

# Memory of results --------------------------------------------------------------------------------


def test_memory_nobody_holds_is_used_again() -> None:
    pool = ResultPool(torch.float32)
    first = pool.take((200, 500), (500, 1))
    assert (first.shape, first.stride(), first.dtype) == ((200, 500), (500, 1), torch.float32)
    address = first.data_ptr()
    first.add_(1)
    del first
    second = pool.take((200, 500), (500, 1))
    assert second.data_ptr() == address
    assert (second._version, second._base, second.requires_grad) == (0, None, False)


@pytest.mark.parametrize(
    "hold",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1:, 2],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.numpy()[::2],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: (torch.ones(200, 500, requires_grad=True) * tensor).sum(),
        lambda tensor: torch.nn.Parameter(tensor),
    ],
)
def test_memory_that_is_held_is_left_alone(hold: Callable[[torch.Tensor], Any]) -> None:
    pool = ResultPool(torch.float32)
    taken = pool.take((200, 500), (500, 1))
    address = taken.data_ptr()
    held = hold(taken)
    del taken
    others = [pool.take((200, 500), (500, 1)) for _ in range(2 * ResultPool.MAX_BUFFERS)]
    assert len({address, *(other.data_ptr() for other in others)}) == 1 + len(others)
    del held


@pytest.mark.parametrize(
    "move",
    [
        lambda tensor: tensor.untyped_storage().resize_(0),
        lambda tensor: tensor.untyped_storage().resize_(8),
        lambda tensor: tensor.resize_(1000, 1000),
        lambda tensor: tensor.share_memory_(),
    ],
    ids=["freed", "less", "more", "shared with other processes"],
)
def test_memory_that_was_moved_is_let_go(move: Callable[[torch.Tensor], Any]) -> None:
    pool = ResultPool(torch.float32)
    taken = pool.take((200, 500), (500, 1))
    move(taken)
    address = taken.data_ptr()
    del taken
    again = pool.take((200, 500), (500, 1))
    assert again.data_ptr() not in (0, address)
    assert again.untyped_storage().nbytes() == 4 * 200 * 500


def test_memory_of_other_sizes_is_let_go() -> None:
    pool = ResultPool(torch.float32)
    pool.take((200, 500), (500, 1))
    other = pool.take((500, 200), (1, 500))
    assert (other.shape, other.stride()) == ((500, 200), (1, 500))
    assert len(pool._buffers) == 1


def test_little_is_kept() -> None:
    pool = ResultPool(torch.float32)
    held = [pool.take((200, 500), (500, 1)) for _ in range(3 * ResultPool.MAX_BUFFERS)]
    assert len({tensor.data_ptr() for tensor in held}) == len(held)
    assert len(pool._buffers) == ResultPool.MAX_BUFFERS


LARGE = torch.linspace(-1, 1, 1 << 18, dtype=torch.float64).reshape(512, 512)


def test_results_that_are_held_are_not_written_to() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.exp()
        return [y, y.sin().t()]

    program = program_of(function, [LARGE])
    kept: list[tuple[Any, Any]] = []
    for scale in range(1, 9):
        one, other = program([LARGE * scale])
        expected = function(LARGE * scale)
        # A view, an array, a saved tensor: what goes away in the meantime is the result itself.
        leaf = torch.ones(512, 512, dtype=torch.float64, requires_grad=True)
        kept += [(one[3:, ::2], expected[0][3:, ::2]), (other.numpy(), expected[1].numpy())]
        (gradient,) = torch.autograd.grad((leaf * one).sum(), leaf, retain_graph=True)
        kept.append((gradient, expected[0]))
        del one, other
    for ours, eager in kept:
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(eager))


def test_a_result_saved_by_autograd_is_not_written_to() -> None:
    x = LARGE.clone().requires_grad_()
    program = program_of(lambda x: [x.exp()], [LARGE])
    losses = [(x * program([LARGE * scale])[0]).sum() for scale in (1, 2, 3)]
    for scale, loss in zip((1, 2, 3), losses, strict=True):
        (gradient,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(gradient, (LARGE * scale).exp())


def test_large_results_are_made_in_the_same_memory_again() -> None:
    program = program_of(lambda x: [x.exp()], [LARGE])
    addresses = {program([LARGE])[0].data_ptr() for _ in range(5)}
    assert len(addresses) == 1


def test_a_core_has_a_cache() -> None:
    assert 1 << 16 <= cache_bytes() <= 1 << 28


FAULTS = """
import resource, sys, torch
from adjoint.runtime.cpu.memory import keep_freed_memory
def use():
    held = [torch.ones(1 << 20) for _ in range(8)]
if "kept" in sys.argv:
    keep_freed_memory()
use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do otherwise")
def test_freed_memory_is_not_given_back_to_the_system() -> None:
    def faults(*arguments: str) -> int:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        command = [sys.executable, "-c", FAULTS, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    # Ten times 32 MiB are 81920 pages; where pages are large, there are few in any case.
    assert faults("kept") < 10_000


def test_memory_is_given_back_after_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the garbage collector has freed others, not when it has found that they are garbage."""
    held: list[weakref.ref[Any]] = []
    freed: list[int] = []

    class Program:
        def __init__(self) -> None:
            self.itself, self.share, self.memory = self, share(), np.zeros(8)
            held.append(weakref.ref(self.memory))

    monkeypatch.setattr(
        memory, "give_back", lambda: freed.append(sum(each() is None for each in held))
    )
    gc.collect()
    freed.clear()
    for _ in range(2 * PROGRAMS_PER_TRIM):
        Program()
    gc.collect()
    assert len(freed) == 2
    assert freed[1] >= PROGRAMS_PER_TRIM


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do otherwise")
def test_the_system_gets_what_lies_between_what_stays() -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    blocks = [bytearray(60_000) for _ in range(1000)]
    kept = blocks[::10]
    before = pages()
    del blocks
    memory.give_back()
    assert len(kept) == 100
    assert before - pages() > 5_000
