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

import adjoint
from adjoint import native
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.plans.binding import Binding
from adjoint.runtime.plans.program import PlanProgram

# What a compilation makes, and what is large.
MADE = (NativeFunction, PlanProgram, Binding, fx.GraphModule, fx.Node)


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
        return (x.sin() * number + (x @ x).exp()).sum() * x.cos().softmax(0).sum()

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
    before, kernels = there(), len(native._KERNELS)
    for number in range(2, 5):
        used(WAYS[way](penalty(number)))
    assert there() - before == Counter()
    assert len(native._KERNELS) <= kernels


PROGRAM = """
import gc, torch, adjoint

def resident():
    torch._dynamo.reset()
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

def compile_some(first, count):
    for n in range(first, first + count):
        text = f"lambda x: (x.sin() * {n}.5 + x.exp()).sum() * x.cos().sum()"
        compiled = torch.compile(eval(text), backend="adjoint")
        compiled(torch.randn(5, requires_grad=True)).backward()
        if n % 20 == 0:
            torch._dynamo.reset()

compile_some(1, 20)
before = resident()
compile_some(21, COUNT)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
@pytest.mark.parametrize(
    ("count", "most"), [(20, 10.0), pytest.param(500, 30.0, marks=pytest.mark.slow)]
)
def test_resident_memory_comes_back(count: int, most: float) -> None:
    """In megabytes.  Dynamo itself keeps some 30 kB of each function."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("COUNT", str(count))],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most
