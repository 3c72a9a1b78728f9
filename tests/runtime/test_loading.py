from __future__ import annotations

import pytest
import torch

from adjoint.kernels import compile_kernels
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.loading import load_program
from adjoint.runtime.loops import LoopProgram
from adjoint.target import REFERENCE, cpu_target
from adjoint.targets import target_on
from tests.lowering import NATIVE, graph_of, lower


def test_the_target_says_what_runs_a_plan() -> None:
    x = torch.rand(3)
    graph = graph_of(lambda x: [x.sin() * 2], [x])
    native = cpu_target(machines.host())
    plan = lower(graph, native)
    program = load_program(plan, compile_kernels(plan, native).code, native)
    assert isinstance(program, CpuProgram)
    torch.testing.assert_close(program([x])[0], x.sin() * 2)
    with pytest.raises(AssertionError, match="op by op has no plan"):
        load_program(plan, {}, REFERENCE)


def test_loops_are_evaluated() -> None:
    x = torch.rand(3)
    target = target_on(torch.device("cpu"), type(NATIVE)(target="loops"))
    plan = lower(graph_of(lambda x: [x.sin() * 2], [x]), target)
    program = load_program(plan, compile_kernels(plan, target).code, target)
    assert isinstance(program, LoopProgram)
    torch.testing.assert_close(program([x])[0], x.sin() * 2)
