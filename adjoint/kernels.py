"""emit and load: the kernels of a plan become native functions."""

from __future__ import annotations

import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.graph.boundary import failure_text, passes_through, warn_of_fallback, was_reported
from adjoint.loops.plan import Launch, Plan
from adjoint.loops.show import identity
from adjoint.loops.statements import Kernel
from adjoint.runtime.code import CodeSource, NativeFunction
from adjoint.runtime.cpu.engine import LLVMError, facts_of, load
from adjoint.runtime.cpu.engine import load_kept as load_object
from adjoint.runtime.gpu.assembly import MACHINE_CODE, PTX, GpuCode, assemble, checked, code_for
from adjoint.runtime.gpu.driver import DriverError
from adjoint.runtime.gpu.driver import load as load_on_gpu
from adjoint.runtime.gpu.ptxas import ASSEMBLERS
from adjoint.store.entries import digest_of
from adjoint.store.entries import key_of as key_of_facts
from adjoint.store.keeping import Store
from adjoint.target import Loader, Machine, Target

Key: TypeAlias = "tuple[torch.device, Machine | None, str]"
Name = TypeVar("Name", bound=Hashable)

# The kernels of this process, by target and content: programs share equal kernels, and a kernel
# lives as long as a program that calls it.
_KERNELS: weakref.WeakValueDictionary[Key, NativeFunction] = weakref.WeakValueDictionary()

# Kernels for the CPU are compiled together, and on another core if there are more than these: what
# they call is compiled once for each module.
MIN_KERNELS_OF_MODULE = 16
_LOCK = threading.Lock()


@dataclass(frozen=True)
class CompiledKernels:
    """The kernels of a plan, and those that could not be compiled."""

    code: dict[Launch, NativeFunction]
    refused: dict[Launch, Exception]
    digests: dict[Launch, str] = field(default_factory=dict)
    """For each kernel, a digest of what it computes."""

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


def key_of(kernel: Kernel, target: Target) -> Key:
    """Equal for kernels that compute the same on one target."""
    return target.device, target.machine, digest_of(identity(kernel))


def load_kept(
    wanted: Sequence[tuple[str, CodeSource]], target: Target, store: Store
) -> list[NativeFunction] | None:
    """Load the code of kernels from the cache, given the digest of each kernel and its entry.

    None if an entry was evicted.
    """
    keys = [(target.device, target.machine, digest) for digest, _ in wanted]
    found: dict[Key, NativeFunction] = {}
    missing: dict[str, dict[Key, CodeSource]] = {}
    with _LOCK:
        for key, (_, source) in zip(keys, wanted, strict=True):
            function = _KERNELS.get(key)
            if function is not None:
                found[key] = function
            else:
                entry = key_of_facts(source.kind, source.facts)
                missing.setdefault(entry, {})[key] = source
        sources = [list(parts.values()) for parts in missing.values()]
        load_all = partial(_load_entry, target=target, store=store)
        # The driver loads several at a time; LLVM's loader takes one after another.
        with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
            is_native = target.loader is Loader.LLVM
            loaded = list((map if is_native else pool.map)(load_all, sources))
        for parts, functions in zip(missing.values(), loaded, strict=True):
            if functions is None:
                return None
            found.update(zip(parts, functions, strict=True))
        _KERNELS.update(found)
    return [found[key] for key in keys]


def _load_entry(
    sources: Sequence[CodeSource], target: Target, store: Store
) -> list[NativeFunction] | None:
    """Load functions of one cache entry; None if it is gone or cannot be loaded."""
    kind, facts, names = sources[0].kind, sources[0].facts, [each.name for each in sources]
    if kind not in (("object",) if target.loader is Loader.LLVM else (PTX, MACHINE_CODE)):
        return None
    code = store.get(kind, facts)
    if code is None:
        return None
    try:
        if target.loader is Loader.LLVM:
            return load_object(code, names, facts)
        loaded = load_on_gpu(checked(kind, code), names, target.device.index)
    except RuntimeError as error:
        store.reject(kind, facts, error)
        return None
    return [replace(f, source=s) for f, s in zip(loaded, sources, strict=True)]


def compile_kernels(plan: Plan, target: Target) -> CompiledKernels:
    """The code of each kernel of a plan; equal kernels of the process are shared."""
    launches = plan.launches
    if target.machine is None:
        return CompiledKernels({}, {})
    keys = {launch: key_of(launch.kernel, target) for launch in launches}
    with _LOCK:
        found: dict[Key, NativeFunction] = {}
        new: dict[Key, Kernel] = {}
        for launch, key in keys.items():
            function = _KERNELS.get(key)
            if function is not None:
                found[key] = function
            elif key not in new:
                # The name is part of the cache key, so it must be the same in every process.
                name = f"{launch.title}_{len(new)}"
                new[key] = replace(launch.kernel, name=name)
        load_all = _load if target.loader is Loader.LLVM else _load_on_gpu
        made, refused = load_all(new, target)
        _KERNELS.update(made)
    found.update(made)
    return CompiledKernels(
        {launch: found[key] for launch, key in keys.items() if key in found},
        {launch: refused[key] for launch, key in keys.items() if key in refused},
        {launch: key[2] for launch, key in keys.items()},
    )


Loaded: TypeAlias = tuple[dict[Key, NativeFunction], dict[Key, Exception]]


def _load(kernels: Mapping[Key, Kernel], target: Target) -> Loaded:
    """Compile a module on each core, if there are enough kernels.  Also returns those that fail."""
    given = list(kernels.items())
    count = min(_cores(), -(-len(given) // MIN_KERNELS_OF_MODULE))
    modules = [dict(given[number::count]) for number in range(count)]
    if count < 2:
        parts = [_load_module(each, target) for each in modules]
    else:
        with ThreadPoolExecutor(max_workers=count) as pool:
            # The threads have the store of this compilation.
            runs = [contextvars.copy_context().run for _ in modules]
            loading = [
                pool.submit(run, _load_module, each, target)
                for run, each in zip(runs, modules, strict=True)
            ]
        parts = [each.result() for each in loading]
    made: dict[Key, NativeFunction] = {}
    failed: dict[Key, Exception] = {}
    for functions, failures in parts:
        made.update(functions)
        failed.update(failures)
    return made, failed


def _cores() -> int:
    """How many threads of this process can run at a time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load_module(kernels: Mapping[Key, Kernel], target: Target) -> Loaded:
    """Compile kernels as one module, if that succeeds.  Also returns those that fail."""
    machine = target.machine
    assert machine is not None
    made: dict[Key, NativeFunction] = {}

    def load_together(kernels: Mapping[Key, Kernel]) -> None:
        text = emit_module(list(kernels.values()), machine.attributes, machine.vector_bytes)
        functions = load(text, [kernel.name for kernel in kernels.values()])
        made.update(zip(kernels, functions, strict=True))

    return made, together_or_alone(kernels, load_together)


def together_or_alone(
    kernels: Mapping[Name, Kernel], compile_together: Callable[[Mapping[Name, Kernel]], None]
) -> dict[Name, Exception]:
    """Compile all kernels together; if that fails, each by itself.  Returns those that fail.

    `compile_together` keeps what it makes.
    """
    try:
        compile_together(kernels)
    except Exception as error:
        if passes_through(error):
            raise
        if len(kernels) == 1:
            return dict.fromkeys(kernels, error)
        failed: dict[Name, Exception] = {}
        for name, kernel in kernels.items():
            failed.update(together_or_alone({name: kernel}, compile_together))
        return failed
    return {}


def _load_on_gpu(kernels: Mapping[Key, Kernel], target: Target) -> Loaded:
    """Compile each kernel as a module of its own, several at a time; and those that failed."""
    made: dict[Key, NativeFunction] = {}
    failed: dict[Key, Exception] = {}
    loading: dict[Key, Future[NativeFunction]] = {}
    with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
        for key, kernel in kernels.items():
            # The new thread needs the context variable that holds the cache of this compilation.
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
    machine, device = target.machine, target.device.index
    assert machine is not None
    text = emit_grid([kernel], target)
    made = code_for(text, machine)
    try:
        (function,) = load_on_gpu(made.code, [kernel.name], device)
    except DriverError:
        if made.kind == PTX:
            raise
        # The assembler may be of a later version than the driver, which then reads PTX alone.
        made = GpuCode(PTX, facts_of(text, machine), assemble(text, machine))
        (function,) = load_on_gpu(made.code, [kernel.name], device)
    return replace(function, source=CodeSource(made.kind, made.facts, kernel.name))
