from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.entry import EntryPoint
from adjoint.runtime.profiling import MAX_NAMED_KERNELS

# Torch 2.11 warns of its own profiler.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")


def activated(x: Tensor) -> Tensor:
    return (torch.nn.functional.silu(x) * 2).cumsum(0).sum()


def test_functions_backward_passes_and_kernels_have_ranges() -> None:
    compiled = torch.compile(activated, backend="adjoint", options={"target": "native"})
    x = torch.rand(50, requires_grad=True)

    def step() -> Tensor:
        (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        return second

    expected = step()
    methods = [EntryPoint.__call__, DifferentiableGraph.backward, CpuProgram.__call__]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        found = step()
        assert EntryPoint.__call__ is not methods[0]
    torch.testing.assert_close(found, expected)
    # Nothing is left in the way of calls.
    assert [EntryPoint.__call__, DifferentiableGraph.backward, CpuProgram.__call__] == methods
    names = {event.key for event in profiled.key_averages()}
    assert "adjoint: activated" in names
    assert "adjoint: backward of activated, order 1" in names
    assert "adjoint: backward of activated, order 2" in names
    kernels = [name for name in names if name.startswith("adjoint kernels: ")]
    assert any("silu" in name for name in kernels)
    assert all(name.count(",") <= MAX_NAMED_KERNELS for name in kernels)


def test_profilers_one_after_another() -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend="adjoint")
    for _ in range(2):
        compiled(torch.rand(3))
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            compiled(torch.rand(3))
        names = {event.key for event in profiled.key_averages()}
        assert sum(name.startswith("adjoint: ") for name in names) == 1
