from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint import kernels
from adjoint.options import Options
from adjoint.runtime.loops import LoopProgram
from tests.loops.test_pointwise import SAMPLES, eager_takes
from tests.lowering import assert_alike, loop_program_of, native_program, special

PLACES = torch.tensor([2, 0, 2])


def numbers(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "rows": (lambda x: [x.softmax(-1), x.sum(-1), x - x.mean(1, keepdim=True)], [numbers(3, 4)]),
    "columns": (lambda x: [x.sum(0), x.amax(0)], [numbers(5, 3)]),
    "total": (lambda x: [x.sin().sum()], [numbers(4, 3)]),
    "layouts": (lambda x: [x.t().contiguous() * 2, x[:, 1::2] + 1], [numbers(4, 5)]),
    "gather": (lambda x, i: [x[i] + 1], [numbers(4, 3), PLACES]),
    "scatter": (lambda x, i, y: [x.index_add(0, i, y)], [numbers(4, 3), PLACES, numbers(3, 3)]),
    "halves": (lambda x: [(x * 3).exp(), x.float() / 3], [numbers(6).half()]),
    "bfloat16": (lambda x: [(x * 3).tanh()], [numbers(6).bfloat16()]),
    "integers": (lambda x: [x // 3, (x % 5).sum()], [torch.arange(-6, 7)]),
    "library calls": (
        lambda x: [((x.exp() @ x.t()).sin() @ x).sort(1).values + 1],
        [numbers(3, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_means_what_eager_computes(name: str) -> None:
    function, inputs = CASES[name]
    program = loop_program_of(function, inputs)
    for _ in range(2):
        for ours, eager in zip(program(list(inputs)), function(*inputs), strict=True):
            assert_alike(ours, eager)


@pytest.mark.parametrize("share", range(8))
def test_pointwise_ops(share: int) -> None:
    """A few ops in one program; `pytest --target loops tests/lower` has all, for all numbers."""
    ops = list(SAMPLES)[share::16]
    cases = [(call, [special(torch.float32)[:9]] * n) for op in ops for n, call in SAMPLES[op][:1]]
    cases = [(call, inputs) for call, inputs in cases if eager_takes(call, inputs)]
    flat = [tensor for _, inputs in cases for tensor in inputs]

    def every(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        return [call(*(next(rest) for _ in inputs)) for call, inputs in cases]

    for ours, eager in zip(loop_program_of(every, flat)(list(flat)), every(*flat), strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-6, atol=1e-6, equal_nan=True)


def test_one_program_for_many_sizes() -> None:
    captured = adjoint.capture(lambda x: [x.sin().sum(0), x * 2], numbers(3, 4), dynamic=True)
    program = native_program(captured.graph_module, Options(target="loops"))
    assert isinstance(program, LoopProgram)
    for shape in [(3, 4), (5, 2), (2, 2)]:
        x = numbers(*shape)
        torch.testing.assert_close(list(program([x])), [x.sin().sum(0), x * 2])


def test_derivatives_of_any_order_need_no_compiler() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.tanh() * x).square().sum()

    x = numbers(5).requires_grad_()
    found = []
    unused = mock.patch.object(kernels, "load", side_effect=AssertionError("LLVM was used"))
    with unused, mock.patch.object(LoopProgram, "__call__", autospec=True) as called:
        called.side_effect = CALL
        for run in (adjoint.compile(function, target="loops"), function):
            (first,) = torch.autograd.grad(run(x), x, create_graph=True)
            found.append([first, *torch.autograd.grad(first.sum(), x)])
    torch.testing.assert_close(*found)
    assert called.call_count >= 3


CALL = LoopProgram.__call__


def test_inputs_are_taken_and_not_changed() -> None:
    x = numbers(3, 4)
    before, inputs = x.clone(), [x.t()]
    (ours,) = loop_program_of(lambda x: [x * 2 + 1], [x])([numbers(4, 3).t()])
    assert ours.shape == (3, 4)
    loop_program_of(lambda x: [x * 2 + 1], inputs)(inputs)
    assert inputs == []
    assert torch.equal(x, before)


def test_what_kernels_write_is_no_write_to_autograd() -> None:
    """As of native programs, results are tensors that were never written in place."""
    program = loop_program_of(lambda x: [x.sin() * 2, x.sum(0)], [numbers(3, 4)])
    assert [each._version for each in program([numbers(3, 4)])] == [0, 0]
