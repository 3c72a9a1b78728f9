"""A plan with its kernels becomes a program that runs on the plan's target."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import assert_never

from adjoint.loops.plan import Launch, Plan
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.reached import reached_inputs
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.loops import LoopProgram
from adjoint.runtime.plans.program import PlanProgram
from adjoint.target import Loader, Target


def load_program(plan: Plan, code: Mapping[Launch, NativeFunction], target: Target) -> PlanProgram:
    """The program of a plan."""
    if target.loader in (Loader.LLVM, Loader.CUDA):
        # Backward passes need it later, when there is no store of the compilation to find it in.
        reached_inputs()
    match target.loader:
        case Loader.LLVM:
            return CpuProgram(plan, code)
        case Loader.CUDA:
            return GpuProgram(plan, code, target)
        case Loader.EVALUATOR:
            return LoopProgram(plan, target)
        case Loader.EAGER:
            raise AssertionError("what runs op by op has no plan")
        case _:
            assert_never(target.loader)
