"""Kernels, plans, programs and graphs die with their last user."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import adjoint
from adjoint import kernels
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.plans.binding import Binding
from adjoint.runtime.plans.program import PlanProgram

# What a compilation makes, and what is large.
MADE = (NativeFunction, PlanProgram, Binding, fx.GraphModule, fx.Node, ShapeEnv, FakeTensor)


def there() -> Counter[str]:
    """How many there are of each."""
    torch._dynamo.reset()
    # What tensors hold from C++ is found to be garbage only once they are gone.
    for _ in range(3):
        gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if issubclass(kind, MADE))


def penalty(number: int) -> Any:
    """Another function for each number, with derivatives of its derivatives."""

    def function(x: Tensor) -> Tensor:
        return (x.sin() * number + x @ x).sum() * x.cos().sum()

    return function


def used(compiled: Any) -> None:
    x = torch.rand(3, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    slope.square().sum().backward()


WAYS: dict[str, Callable[[Any], Any]] = {
    "torch.compile": lambda function: torch.compile(function, backend="adjoint"),
    "torch.compile, dynamic": lambda f: torch.compile(f, backend="adjoint", dynamic=True),
    "adjoint.compile": adjoint.compile,
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_stays_of_a_function_that_is_gone(way: str) -> None:
    used(WAYS[way](penalty(1)))
    before, count = there(), len(kernels._KERNELS)
    for number in range(2, 4):
        used(WAYS[way](penalty(number)))
    assert there() - before == Counter()
    assert len(kernels._KERNELS) <= count


def test_nothing_stays_of_an_attempt_that_failed() -> None:
    """A frame with an empty input is compiled twice: for any sizes, and for an empty one."""

    def use(number: int) -> None:
        compiled = torch.compile(lambda x: x.sin() * number, backend="adjoint")
        for rows in (0, 3, 5):
            compiled(torch.rand(rows, 4, requires_grad=True)).sum().backward()

    use(1)
    before = there()
    for number in range(2, 5):
        use(number)
    assert there() - before == Counter()


PROGRAM = """
import gc, sys, torch, adjoint

backend, count = sys.argv[1], int(sys.argv[2])

def resident():
    torch._dynamo.reset()
    for _ in range(3):
        gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

def compile_some(first, count):
    for n in range(first, first + count):
        text = f"lambda x: (x.sin() * {n}.5 + x.exp()).sum() * x.cos().sum()"
        compiled = torch.compile(eval(text), backend=backend)
        compiled(torch.randn(5, requires_grad=True)).backward()

compile_some(1, 10)
before = resident()
compile_some(11, count)
print(resident() - before)
"""


def grown(count: int, *backends: str) -> list[float]:
    """Megabytes that stay of `count` functions, each backend in a process of its own."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, backend, str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for backend in backends
    ]
    said = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        assert process.returncode == 0, errors
    return [float(figure) for figure, _ in said]


needs_statm = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm"
)


@needs_statm
def test_resident_memory_comes_back() -> None:
    (megabytes,) = grown(12, "adjoint")
    assert megabytes < 6


@needs_statm
@pytest.mark.slow
def test_resident_memory_of_many_functions_comes_back() -> None:
    """Beyond what stays with the backend `eager`, which compiles nothing.

    Dynamo refers to the code of functions that are gone until it is reset, so that all programs are
    there until then; and it keeps some 90 kB of each for good, which is more than the bar for 500.
    """
    ours, dynamo = grown(500, "adjoint", "eager")
    assert ours - dynamo < 30, f"{ours:.0f} MB stay, {dynamo:.0f} of them with Dynamo"
