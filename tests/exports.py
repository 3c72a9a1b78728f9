"""Exported programs in tests: made here, loaded here, or in a process that has no LLVM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import adjoint
from adjoint.exported.loaded import LoadedProgram

# Before anything else is imported: `import llvmlite` fails.
WITHOUT_LLVM = """\
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "llvmlite":
            raise ImportError("there is no llvmlite")
sys.meta_path.insert(0, Missing())
"""


def exported(
    function: Callable[..., Any], args: Sequence[Any], folder: Path, **options: Any
) -> LoadedProgram:
    """A function that was exported and loaded again."""
    path = folder / f"program{len(list(folder.iterdir()))}.adjoint"
    return adjoint.load(adjoint.export(function, args, path, **options))


def in_another_process(program: str, *arguments: object) -> Any:
    """What a program prints as JSON, in a process without LLVM; it has `sys.argv`."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLVM + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def leaves_of(args: Sequence[Any], wrt: Sequence[int] | None = None) -> list[Any]:
    """Copies of the arguments; those at `wrt`, or all floating-point ones, require grad."""
    made: list[Any] = []
    for place, each in enumerate(args):
        if not isinstance(each, torch.Tensor):
            made.append(each)
            continue
        copy = each.detach().clone()
        if each.is_floating_point() and (wrt is None or place in wrt):
            copy.requires_grad_()
        made.append(copy)
    return made


def tensors_in(value: Any) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves(value)
    return [each for each in found if isinstance(each, torch.Tensor)]


def derivatives(
    function: Callable[..., Any], args: Sequence[Any], orders: int, wrt: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """Results, and gradients up to an order, with weights that are the same in each call."""
    made = leaves_of(args, wrt)
    wanted = [each for each in made if isinstance(each, torch.Tensor) and each.requires_grad]
    now = tensors_in(function(*made))
    found = [each.detach() for each in now]
    generator = torch.Generator().manual_seed(1)
    for order in range(orders):
        terms = [each for each in now if each.requires_grad]
        if not terms:
            break
        weights = [torch.randn(each.shape, dtype=each.dtype, generator=generator) for each in terms]
        loss = sum((each * weight).sum() for each, weight in zip(terms, weights, strict=True))
        assert isinstance(loss, torch.Tensor)
        gradients = torch.autograd.grad(
            loss, wanted, create_graph=order + 1 < orders, allow_unused=True
        )
        now = tensors_in(gradients)
        found += [each.detach() for each in now]
    return found


def assert_as_eager(
    function: Callable[..., Any],
    loaded: Callable[..., Any],
    args: Sequence[Any],
    orders: int,
    wrt: Sequence[int] | None = None,
) -> None:
    expected = derivatives(function, args, orders, wrt)
    found = derivatives(loaded, args, orders, wrt)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
