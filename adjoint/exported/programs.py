"""The programs of an exported file: plans with machine code for this CPU, or for its GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from adjoint.errors import LoadError, SourceLine
from adjoint.exported.file import CpuCode, Exported, Gpu, GpuKernels
from adjoint.forms.form import Malformed
from adjoint.forms.plans import read_plan
from adjoint.loops.plan import Plan
from adjoint.open_types import TorchValue
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.externals import add_external, external
from adjoint.runtime.cpu.images import MappedImage, Unmappable
from adjoint.runtime.cpu.levels import LEVELS, lacking
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.residents import bring
from adjoint.runtime.executable import Executable
from adjoint.runtime.gpu.driver import DriverError, launch_address, load
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.gpu.ptxas import ASSEMBLERS, AssemblerError, assembler_for
from adjoint.runtime.plans.binding import BindingFailed
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.seeds import new_seeds
from adjoint.target import cuda_target


class HeldTensors:
    """The constants of plans, by their names in the file."""

    lines: Mapping[SourceLine, int] = {}

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def held(self, name: str) -> torch.Tensor | None:
        """The constant of this name; None: there is none."""
        return self._tensors.get(name)


def fitting(targets: Sequence[CpuCode]) -> CpuCode:
    """The best machine code that this CPU can run; raises `LoadError`."""
    missing = {each.cpu: lacking(each.cpu) for each in targets if each.cpu in LEVELS}
    able = [each for each in targets if missing.get(each.cpu) == []]
    if not able:
        reasons = [f"{cpu} ({', '.join(names)})" for cpu, names in missing.items()]
        raise LoadError(f"this CPU cannot run its code for {'; '.join(reasons) or 'nothing'}")
    return max(able, key=lambda each: LEVELS.index(each.cpu))


def require_gpu(gpu: Gpu) -> GpuKernels:
    """The best code for the GPU that the programs are for; raises `LoadError`."""
    device = torch.device(gpu.device)
    if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
        raise LoadError(f"its programs are for {gpu.device}, and this machine has no such GPU")
    capability = torch.cuda.get_device_capability(device)
    able = [each for each in gpu.codes if each.capability <= capability]
    if not able:
        known = ", ".join(_shown(each.capability) for each in gpu.codes) or "nothing"
        raise LoadError(
            f"{gpu.device} has compute capability {_shown(capability)}, and its code is for {known}"
        )
    return max(able, key=lambda each: each.capability)


def _shown(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


class LoadedPrograms:
    """The programs, each made when it first runs; what they are made of is validated before."""

    def __init__(self, exported: Exported, held: Mapping[str, torch.Tensor]) -> None:
        self._target = fitting(exported.targets)
        self._gpu = exported.gpu
        self._gpu_code = None if exported.gpu is None else require_gpu(exported.gpu)
        functions: Mapping[str, object] = self._target.image.functions
        if self._gpu_code is not None:
            functions = self._gpu_code.modules
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
        self._functions: Mapping[str, NativeFunction] | None = None

    @property
    def cpu(self) -> str:
        """The level of CPU, or the compute capability, whose code runs."""
        if self._gpu_code is not None:
            return f"compute capability {_shown(self._gpu_code.capability)}"
        return self._target.cpu

    def map(self) -> None:
        """Map the machine code into this process."""
        target = self._target
        try:
            if self._gpu_code is not None:
                add_external("cuLaunchKernel", launch_address())
            code = MappedImage(target.image, external)
            _RESIDENT.append(code)
            bring({key: code.address(name) for key, name in target.glue.items()})
            if self._gpu is not None and self._gpu_code is not None:
                self._functions = _on_gpu(self._gpu_code, torch.device(self._gpu.device))
                return
        except (Unmappable, DriverError) as error:
            raise LoadError(f"its machine code cannot be loaded: {error}") from error
        self._functions = {
            name: NativeFunction(code.address(name), code) for name in target.image.functions
        }

    def at(self, number: int) -> Executable:
        """What runs the program of this number."""
        found = self._made.get(number)
        if found is None:
            found = self._made[number] = self._program(number)
        return found

    def _program(self, number: int) -> Executable:
        plan, mapped, gpu = self.plans[number], self._functions, self._gpu
        assert mapped is not None, "the code is mapped first"
        functions = [mapped[name] for name in self._names[number]]
        code = dict(zip(plan.launches, functions, strict=True))
        if gpu is None or self._gpu_code is None:
            return _Program(CpuProgram(plan, code))
        target = cuda_target(
            torch.device(gpu.device),
            self._gpu_code.capability,
            gpu.draws_in_kernels,
            gpu.captures_cuda_graphs,
        )
        return _Program(GpuProgram(plan, code, target))


def _on_gpu(code: GpuKernels, device: torch.device) -> dict[str, NativeFunction]:
    """The kernels, assembled several at a time and loaded."""
    torch.cuda.init()
    cpu = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
        load_one = functools.partial(_load_kernel, cpu=cpu, device=device.index)
        return dict(zip(code.modules, pool.map(load_one, code.modules.items()), strict=True))


def _load_kernel(kernel: tuple[str, bytes], cpu: str, device: int) -> NativeFunction:
    name, text = kernel
    assembler = assembler_for(cpu)
    if assembler is not None:
        # Without this assembler, or if it fails, the driver assembles.
        with contextlib.suppress(AssemblerError, DriverError):
            (function,) = load(assembler.assemble(text, cpu), [name], device)
            return function
    (function,) = load(text, [name], device)
    return function


# Images with glue, which stays loaded for as long as the process runs.
_RESIDENT: list[MappedImage] = []


class _Program:
    """Runs a program; a call that it does not fit is an error, because there is no compiler to
    fall back on.
    """

    def __init__(self, program: PlanProgram) -> None:
        self._program = program
        self._streams = program.plan.streams
        self.forgets_histories = program.forgets_histories

    def __call__(self, inputs: list[object]) -> TorchValue:
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
