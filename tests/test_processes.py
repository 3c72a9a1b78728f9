"""The cache of several processes: one after another, and several at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PROCESS = """
import json, sys, torch, adjoint
from adjoint import compiler
from adjoint.capture import dynamo
from adjoint.runtime.cpu import engine
made = []
def counted(owner, name):
    function = getattr(owner, name)
    def run(*args, **kwargs):
        made.append(name)
        return function(*args, **kwargs)
    setattr(owner, name, run)
counted(dynamo, "_captured")
counted(compiler, "lower")
counted(compiler, "differentiate_where_possible")
counted(engine, "compile_object")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
compiled = torch.compile(net, backend="adjoint")
def gradients(of):
    net.zero_grad()
    at = torch.linspace(-1, 1, 21, dtype=torch.float64).reshape(7, 3).requires_grad_()
    (slope,) = torch.autograd.grad(of(at).sum(), at, create_graph=True)
    (slope ** 2).mean().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]
mine = gradients(compiled)
for one, other in zip(mine, gradients(net), strict=True):
    torch.testing.assert_close(one, other)
print(json.dumps(made))
"""


def processes(folder: Path, count: int) -> Iterator[list[str]]:
    """What each of several processes at once compiled."""
    environment = {**os.environ, "ADJOINT_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROCESS],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0
        yield json.loads(said)


def test_a_process_after_another(tmp_path: Path) -> None:
    (first,) = processes(tmp_path, 1)
    assert {*first} == {"_captured", "lower", "differentiate_where_possible", "compile_object"}
    (second,) = processes(tmp_path, 1)
    assert second == []


@pytest.mark.slow
def test_eight_processes_at_once_compile_once(tmp_path: Path) -> None:
    (alone,) = processes(tmp_path / "alone", 1)
    together = [name for made in processes(tmp_path / "together", 8) for name in made]
    assert Counter(together) == Counter(alone)
    (after,) = processes(tmp_path / "together", 1)
    assert after == []
