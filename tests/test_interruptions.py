"""Compilation that ends in the middle: the next call works, and nothing else has changed.

An exception is raised when some function of the package is first entered.  `KeyboardInterrupt`
stands for whatever stops a user's cell, `MemoryError` for an allocation that fails.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

import adjoint
from adjoint import kernels

PACKAGE = str(Path(adjoint.__file__).parent)
ERRORS = [KeyboardInterrupt, MemoryError]
FEW, MANY = 2, 40

# Where the effects of a program are applied, after it ran: in the middle some have been.
APPLYING_EFFECTS = ("runtime/calling.py", "runtime/input_changes.py", "runtime/recipes.py")


@contextmanager
def failing(at: str | None, error: type[BaseException]) -> Iterator[dict[str, None]]:
    """Raise on entering the function `at`; which functions were entered."""
    entered: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            function = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
            entered[function] = None
            if function == at:
                raise error("in the middle")

    sys.setprofile(watch)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def fresh() -> None:
    """Nothing is compiled yet."""
    torch._dynamo.reset()
    kernels._KERNELS.clear()


def model(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    counts.add_(1)
    y = (x @ w).tanh()
    y = y / (1 + y.square().sum(1, keepdim=True))
    return (y * counts).softmax(1).log().sum(0)


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.rand(5, 3, dtype=torch.float64), torch.rand(3, 3, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_(), torch.arange(3.0, dtype=torch.float64)


def penalty(function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor) -> list[Tensor]:
    """Value and gradients of a loss on gradients."""
    y = function(x, w, counts)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return [y, *torch.autograd.grad(slope.square().sum() + y.sum(), [x, w])]


def forward(function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [function(x, w, counts)]


WAYS = {"forward": forward, "penalty": penalty}


def steps(way: str) -> list[str]:
    """The functions that a compilation and its first run enter."""

    def compiled() -> list[str]:
        fresh()
        function = adjoint.compile(model)
        with failing(None, KeyboardInterrupt) as entered:
            WAYS[way](function, *arguments())
        return list(entered)

    compiled()  # The first compilation of a process fills tables.
    return compiled()


def check_failure(way: str, where: str, error: type[BaseException]) -> None:
    fresh()
    function = adjoint.compile(model)
    inputs, expected = arguments(), arguments()
    try:
        with failing(where, error):
            actual = WAYS[way](function, *inputs)
    except error:
        applies_effects = any(each in where for each in APPLYING_EFFECTS)
        assert_untouched(inputs, expected, way == "penalty" or applies_effects)
        actual = WAYS[way](function, *inputs)
    else:
        # Dynamo may have tried again.  What the user asked for is not passed over.
        assert error is not KeyboardInterrupt, where
    for ours, eager in zip(actual, WAYS[way](model, *expected), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9, msg=where)
    torch.testing.assert_close(inputs[2], expected[2], rtol=0, atol=0, msg=where)


def assert_untouched(
    inputs: Sequence[Tensor], expected: Sequence[Tensor], may_have_run: bool
) -> None:
    """Or, where the first graph has run before, as eager would have left them."""
    if may_have_run and not torch.equal(inputs[2], expected[2]):
        expected[2].add_(1)
    for ours, theirs in zip(inputs, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours._version == theirs._version


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_failure_anywhere(way: str, error: type[BaseException], count: int) -> None:
    for function in random.Random(0).sample(steps(way), count):
        check_failure(way, function, error)


KILLED = """
import os, signal, sys, torch, adjoint
from adjoint import kernels

def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)

if "killed" in sys.argv:
    kernels.load = killed
x = torch.arange(3.0)
assert torch.equal(adjoint.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(PACKAGE).parent)}
    environment["TMPDIR"] = environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)

    def process(*arguments: str) -> int:
        command = [sys.executable, "-c", KILLED, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode

    assert process("killed") == -signal.SIGKILL
    assert list(tmp_path.rglob("*")) == []
    assert process() == 0
