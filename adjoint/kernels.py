"""emit and load: the kernels of a plan become native functions."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.graph.boundary import failure_text, passes_through, warn_of_fallback, was_reported
from adjoint.loops.plan import Launch, Plan
from adjoint.loops.show import identity
from adjoint.loops.statements import Kernel
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.runtime.gpu.assembly import assemble
from adjoint.runtime.gpu.driver import load as load_on_gpu
from adjoint.target import Loader, Machine, Target

Key: TypeAlias = "tuple[torch.device, Machine | None, str]"

# The kernels of this process, by target and content: programs share equal kernels, and a kernel
# lives as long as a program that calls it.
_KERNELS: weakref.WeakValueDictionary[Key, NativeFunction] = weakref.WeakValueDictionary()

# Each compiles a kernel, first by LLVM and then by the driver.
ASSEMBLERS = 16
_LOCK = threading.Lock()


@dataclass(frozen=True)
class CompiledKernels:
    """The kernels of a plan, and those that could not be compiled."""

    code: dict[Launch, NativeFunction]
    refused: dict[Launch, Exception]

    def __len__(self) -> int:
        return len(self.code) + len(self.refused)

    @property
    def refused_nodes(self) -> frozenset[str]:
        """The nodes whose kernels were rejected."""
        return frozenset(name for launch in self.refused for name in launch.nodes)

    def warn(self, reported: set[str] | None) -> None:
        """Warn the user of rejected kernels, except those already `reported`."""
        for launch, error in self.refused.items():
            if not was_reported(error, reported):
                _warn(launch, error)


def _warn(launch: Launch, error: Exception) -> None:
    lines = launch.kernel.lines
    refused = isinstance(error, LLVMError | NotImplementedError)
    said = (
        f"LLVM refused their kernel: {error}"
        if refused
        else f"of their kernel, {failure_text(error)}"
    )
    warn_of_fallback(
        f"{', '.join(launch.nodes) or launch.kernel.name} run op by op, because {said}"
        + "".join(f"\n  at {line}" for line in lines),
        lines[0] if lines else None,
    )


def compile_kernels(plan: Plan, target: Target) -> CompiledKernels:
    """The code of each kernel of a plan; equal kernels of the process are shared."""
    launches = plan.launches
    if target.machine is None:
        return CompiledKernels({}, {})
    keys = {launch: (target.device, target.machine, identity(launch.kernel)) for launch in launches}
    with _LOCK:
        found: dict[Key, NativeFunction] = {}
        new: dict[Key, Kernel] = {}
        for launch, key in keys.items():
            function = _KERNELS.get(key)
            if function is not None:
                found[key] = function
            elif key not in new:
                # The same in every process: the store finds code by its text.
                name = f"{launch.title}_{len(new)}"
                new[key] = dataclasses.replace(launch.kernel, name=name)
        load_all = _load if target.loader is Loader.LLVM else _load_on_gpu
        made, refused = load_all(new, target)
        _KERNELS.update(made)
    found.update(made)
    return CompiledKernels(
        {launch: found[key] for launch, key in keys.items() if key in found},
        {launch: refused[key] for launch, key in keys.items() if key in refused},
    )


Loaded: TypeAlias = tuple[dict[Key, NativeFunction], dict[Key, Exception]]


def _load(kernels: Mapping[Key, Kernel], target: Target) -> Loaded:
    """Compile all as one module; if that fails, each by itself.  Also returns those that fail."""
    if not kernels:
        return {}, {}
    assert target.machine is not None
    try:
        text = emit_module(list(kernels.values()), target.machine.attributes)
        found = load(text, [kernel.name for kernel in kernels.values()])
    except Exception as error:
        if passes_through(error):
            raise
        if len(kernels) == 1:
            return {}, dict.fromkeys(kernels, error)
        made: dict[Key, NativeFunction] = {}
        failed: dict[Key, Exception] = {}
        for key, kernel in kernels.items():
            alone, failures = _load({key: kernel}, target)
            made.update(alone)
            failed.update(failures)
        return made, failed
    return dict(zip(kernels, found, strict=True)), {}


def _load_on_gpu(kernels: Mapping[Key, Kernel], target: Target) -> Loaded:
    """Each by itself: the driver assembles several at a time.  Also returns those that fail."""
    made: dict[Key, NativeFunction] = {}
    failed: dict[Key, Exception] = {}
    loading: dict[Key, Future[NativeFunction]] = {}
    with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
        for key, kernel in kernels.items():
            # The thread has the store of this compilation.
            run = contextvars.copy_context().run
            loading[key] = pool.submit(run, _loaded_on_gpu, kernel, target)
    for key, future in loading.items():
        error = future.exception()
        if isinstance(error, Exception) and not passes_through(error):
            failed[key] = error
        else:
            made[key] = future.result()
    return made, failed


def _loaded_on_gpu(kernel: Kernel, target: Target) -> NativeFunction:
    assert target.machine is not None
    code = assemble(emit_grid([kernel], target), target.machine)
    return load_on_gpu(code, [kernel.name], target.device.index)[0]
