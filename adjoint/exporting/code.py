"""Machine code for an exported file: kernels and the glue between them, for several CPUs."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.errors import ExportError
from adjoint.exported.file import CpuCode, GpuKernels
from adjoint.graph.boundary import failure_text, passes_through
from adjoint.kernels import key_of, together_or_alone
from adjoint.loops.plan import Launch, Plan
from adjoint.loops.statements import Kernel
from adjoint.runtime import glue
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.engine import compile_object
from adjoint.runtime.cpu.levels import LEVELS, lacking
from adjoint.runtime.cpu.linking import Unlinkable, linked
from adjoint.runtime.cpu.objects import symbols_of
from adjoint.runtime.cpu.residents import key_of as glue_key
from adjoint.runtime.cpu.support import SUPPORT
from adjoint.runtime.gpu.assembly import assemble
from adjoint.target import Machine, Target, cuda_target


def levels(asked: Sequence[str] | None) -> tuple[str, ...]:
    """The levels of CPUs to compile for; None: the highest that this machine has."""
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        raise ExportError(
            f"programs are exported on Linux and x86-64; this is {platform.system()} on "
            f"{platform.machine()}"
        )
    if asked is None:
        return (max((each for each in LEVELS if not lacking(each)), key=LEVELS.index),)
    unknown = [each for each in asked if each not in LEVELS]
    if unknown or not asked or isinstance(asked, str):
        raise ExportError(f"cpus={asked!r}; choose some of {', '.join(LEVELS)}")
    return tuple(dict.fromkeys(asked))


def capabilities(asked: Sequence[str] | None, device: torch.device) -> tuple[tuple[int, int], ...]:
    """The compute capabilities to compile for, the least first; None: that of the GPU."""
    if asked is None:
        return (torch.cuda.get_device_capability(device),)
    if isinstance(asked, str) or not asked or not all(map(_CAPABILITY.fullmatch, asked)):
        raise ExportError(f"gpus={asked!r}; choose compute capabilities, such as ('8.0', '9.0')")
    pairs = [each.split(".") for each in asked]
    return tuple(sorted({(int(major), int(minor)) for major, minor in pairs}))


_CAPABILITY = re.compile(r"\d{1,2}\.\d")


def machine(level: str) -> Machine:
    """The machine of a level, whether or not this one is of that level."""
    return Machine(machines.host().triple, level)


class Code:
    """The kernels of all plans of a file; equal ones are compiled once."""

    is_for_gpu = False

    def __init__(self, cpus: Sequence[str]) -> None:
        self.cpus = cpus
        self._names: dict[str, str] = {}
        self._objects: dict[str, list[tuple[str, bytes]]] = {cpu: [] for cpu in cpus}

    def add(self, plan: Plan, target: Target) -> tuple[tuple[str, ...], dict[Launch, Exception]]:
        """Compile the kernels of a plan: the names of its launches, and those that LLVM rejects."""
        new: dict[str, Kernel] = {}
        keys = [key_of(launch.kernel, target)[2] for launch in plan.launches]
        for key, launch in zip(keys, plan.launches, strict=True):
            if key not in self._names and key not in new:
                new[key] = replace(launch.kernel, name=f"{launch.title}_{len(new)}")
        refused = self._compile(new)
        return (
            tuple(self._names.get(key, "") for key in keys),
            {each: refused[k] for k, each in zip(keys, plan.launches, strict=True) if k in refused},
        )

    def _compile(self, kernels: dict[str, Kernel]) -> dict[str, Exception]:
        """Compile kernels as one module, if that succeeds.  Returns those that fail."""
        return together_or_alone(kernels, self._compile_together) if kernels else {}

    def _compile_together(self, kernels: Mapping[str, Kernel]) -> None:
        label = f"{len(self._names)}."
        objects = {cpu: self._object(list(kernels.values()), cpu) for cpu in self.cpus}
        for cpu, data in objects.items():
            self._objects[cpu].append((label, data))
        self._names.update({key: label + kernel.name for key, kernel in kernels.items()})

    def _object(self, kernels: list[Kernel], cpu: str) -> bytes:
        made = machine(cpu)
        text = emit_module(kernels, made.attributes, made.vector_bytes)
        return compile_object(text, made, may_move=True)

    def targets(self) -> tuple[CpuCode, ...]:
        """The code of all plans, for each level of CPU."""
        try:
            return tuple(map(self._target, self.cpus))
        except Unlinkable as error:
            raise ExportError(f"machine code cannot be exported: {error}") from error
        except Exception as error:
            if passes_through(error):
                raise
            raise ExportError(f"machine code cannot be exported: {failure_text(error)}") from error

    def _target(self, cpu: str) -> CpuCode:
        objects = list(self._objects[cpu])
        names: dict[str, str] = {}
        for number, (text, name) in enumerate(glue.functions(self.is_for_gpu)):
            data = compile_object(text, machine(cpu), is_tuned=False, may_move=True)
            objects.append((f"glue{number}.", data))
            names[glue_key(text, name)] = f"glue{number}.{name}"
        added: set[str] = set()
        while True:
            undefined = {name for _, data in objects for name in symbols_of(data).undefined}
            wanted = sorted((undefined & SUPPORT.keys()) - added)
            if not wanted:
                return CpuCode(cpu, linked(objects), names)
            added.update(wanted)
            objects += [
                ("", compile_object(SUPPORT[name], machine(cpu), may_move=True)) for name in wanted
            ]


class GpuModules(Code):
    """The kernels of all plans of a file for a GPU, and glue for the CPU beside it."""

    is_for_gpu = True

    def __init__(
        self, cpus: Sequence[str], target: Target, gpus: Sequence[tuple[int, int]]
    ) -> None:
        """`target`: that of the least of the compute capabilities `gpus`, which plans are for."""
        super().__init__(cpus)
        self._machines = {
            each: replace(target, machine=cuda_target(target.device, each).machine) for each in gpus
        }
        self._modules: dict[tuple[int, int], dict[str, bytes]] = {each: {} for each in gpus}

    def _compile(self, kernels: dict[str, Kernel]) -> dict[str, Exception]:
        """Compile each by itself, for each compute capability.  Returns those that fail."""
        failed: dict[str, Exception] = {}
        for key, kernel in kernels.items():
            named = replace(kernel, name=f"k{len(self._names)}_{kernel.name}")
            try:
                made = {
                    each: self._module(named, target) for each, target in self._machines.items()
                }
            except Exception as error:
                if passes_through(error):
                    raise
                failed[key] = error
                continue
            for each, code in made.items():
                self._modules[each][named.name] = code
            self._names[key] = named.name
        return failed

    def _module(self, kernel: Kernel, target: Target) -> bytes:
        assert target.machine is not None
        return assemble(emit_grid([kernel], target), target.machine)

    def codes(self) -> tuple[GpuKernels, ...]:
        """The kernels for each compute capability."""
        return tuple(GpuKernels(each, modules) for each, modules in self._modules.items())
