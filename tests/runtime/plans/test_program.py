from __future__ import annotations

import torch

from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.plans.program import PlanProgram
from tests.lowering import program_of


def test_programs_of_targets_share_what_none_switches_off() -> None:
    shared = {name for name, value in vars(PlanProgram).items() if callable(value)}
    for program in (CpuProgram, GpuProgram):
        assert program.__bases__ == (PlanProgram,)
        changed = shared & set(vars(program)) - {"__init__"}
        assert changed == PlanProgram.__abstractmethods__


def test_what_operators_return_is_looked_at_once() -> None:
    x = torch.rand(4, 3)
    program = program_of(lambda x: [x.sin().sort(1).values + 1], [x])
    assert program._checked_function is None
    torch.testing.assert_close(program([x])[0], x.sin().sort(1).values + 1)
    assert program._checked_function is not None
