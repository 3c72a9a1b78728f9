"""The programs of an exported file: plans with machine code for this processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from adjoint.errors import LoadError, SourceLine
from adjoint.exported.file import Exported, Target
from adjoint.forms.form import Malformed
from adjoint.forms.plans import read_plan
from adjoint.loops.plan import Launch, Plan
from adjoint.open_types import TorchValue
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.images import MappedImage, Unmappable
from adjoint.runtime.cpu.levels import LEVELS, lacking
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.residents import bring
from adjoint.runtime.executable import Executable
from adjoint.runtime.plans.binding import BindingFailed
from adjoint.runtime.seeds import new_seeds


class HeldTensors:
    """The constants of plans, by their names in the file."""

    lines: Mapping[SourceLine, int] = {}

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def held(self, name: str) -> torch.Tensor | None:
        """The constant of this name; None: there is none."""
        return self._tensors.get(name)


def fitting(targets: Sequence[Target]) -> Target:
    """The best machine code that this processor can run; raises `LoadError`."""
    missing = {each.cpu: lacking(each.cpu) for each in targets if each.cpu in LEVELS}
    able = [each for each in targets if missing.get(each.cpu) == []]
    if not able:
        reasons = [f"{cpu} ({', '.join(names)})" for cpu, names in missing.items()]
        raise LoadError(f"this processor cannot run its code for {'; '.join(reasons) or 'nothing'}")
    return max(able, key=lambda each: LEVELS.index(each.cpu))


class LoadedPrograms:
    """The programs, each made when it first runs; what they are made of is validated before."""

    def __init__(self, exported: Exported, held: Mapping[str, torch.Tensor]) -> None:
        self._target = fitting(exported.targets)
        functions = self._target.image.functions
        self.plans: list[Plan] = []
        for each in exported.plans:
            try:
                plan = read_plan(each.text, HeldTensors(held))
            except Malformed as error:
                raise LoadError(f"it is damaged, or torch has changed: {error}") from error
            if len(plan.launches) != len(each.functions) or not functions.keys() >= {
                *each.functions
            }:
                raise LoadError("it is damaged: a launch has no code")
            self.plans.append(plan)
        self._names = [each.functions for each in exported.plans]
        self._made: dict[int, Executable] = {}
        self._code: MappedImage | None = None

    @property
    def cpu(self) -> str:
        """The level of processor whose code runs."""
        return self._target.cpu

    def map(self) -> None:
        """Map the machine code into this process."""
        target = self._target
        try:
            code = MappedImage(target.image, external)
        except Unmappable as error:
            raise LoadError(f"its machine code cannot be loaded: {error}") from error
        _RESIDENT.append(code)
        bring({key: code.address(name) for key, name in target.glue.items()})
        self._code = code

    def at(self, number: int) -> Executable:
        """What runs the program of this number."""
        found = self._made.get(number)
        if found is None:
            found = self._made[number] = self._program(number)
        return found

    def _program(self, number: int) -> Executable:
        plan, code = self.plans[number], self._code
        assert code is not None, "the code is mapped first"
        functions = [NativeFunction(code.address(name), code) for name in self._names[number]]
        return _Program(plan, dict(zip(plan.launches, functions, strict=True)))


# Glue stays for as long as the process runs, and it is in these.
_RESIDENT: list[MappedImage] = []


class _Program:
    """Runs a program; what torch or the sizes do not fit is an error, because nothing else can."""

    def __init__(self, plan: Plan, functions: Mapping[Launch, NativeFunction]) -> None:
        self._program = CpuProgram(plan, functions)
        self._streams = plan.streams
        self.forgets_histories = self._program.forgets_histories

    def __call__(self, inputs: list[TorchValue]) -> TorchValue:
        if self._streams:
            inputs.append(new_seeds(self._streams, self._program.device))
        try:
            return self._program(inputs)
        except BindingFailed as error:
            raise LoadError(f"it cannot run for these sizes: {error.__cause__}") from error
        except UnexpectedResult as error:
            raise LoadError(
                f"{error}, and not what the exporting torch returned: export it again"
            ) from error
