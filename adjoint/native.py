"""lower -> emit -> load: a graph becomes native code for the processor or a GPU."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import sympy
import torch
from torch import fx

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.errors import FallbackWarning
from adjoint.graph.evaluation import entry_mode
from adjoint.graph.metadata import mode_of
from adjoint.loops.plan import Launch, Plan, Tiles
from adjoint.loops.show import show
from adjoint.loops.statements import Kernel
from adjoint.lower.planning import CPU, is_plain, lower
from adjoint.runtime.cpu.engine import LLVMError, function_attributes, load
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.tiles import has_blas
from adjoint.runtime.gpu.assembly import assemble
from adjoint.runtime.gpu.driver import DriverError
from adjoint.runtime.gpu.driver import load as load_on_gpu
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.fake import fake_mode_of

Key: TypeAlias = tuple[torch.device, str]

# Kernels of this process by where they run and what they do: programs share those that are the
# same.
_KERNELS: dict[Key, int] = {}

# The driver gains nothing from more.
ASSEMBLERS = 8
_LOCK = threading.Lock()


def native_program(graph_module: fx.GraphModule, recorded: bool = True) -> CpuProgram | None:
    """The graph as native code; None if it is to be run op by op.

    `recorded`: a GPU may be told to do again what it did.
    """
    device = _device_of(graph_module)
    if device is None:
        return None
    grids = device.type == "cuda"
    with symbols.noted(fake_mode_of(graph_module).shape_env) as assumed:
        plan = lower(graph_module, device, tiles=has_blas(), grids=grids)
    plan = dataclasses.replace(plan, assumed=tuple(assumed))
    launches = list(_launches(plan))
    if not launches or _unknown_sizes(plan):
        return None
    try:
        code = _compiled(launches, device)
        return GpuProgram(plan, code, device, recorded) if grids else CpuProgram(plan, code)
    except (LLVMError, DriverError, NotImplementedError) as error:
        lines = {str(line) for launch in launches for line in launch.kernel.lines}
        warnings.warn(
            f"runs op by op, because LLVM refused a kernel: {error}\nfor {sorted(lines)}",
            FallbackWarning,
            stacklevel=2,
        )
        return None


def _launches(plan: Plan) -> Iterator[Launch]:
    for step in plan.steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Tiles):
            yield from step.begin
            yield from (each for each in step.body if isinstance(each, Launch))


def _compiled(launches: Sequence[Launch], device: torch.device) -> dict[Launch, int]:
    keys = [(device, show(dataclasses.replace(launch.kernel, lines=()))) for launch in launches]
    with _LOCK:
        new: dict[Key, Kernel] = {}
        for key, launch in zip(keys, launches, strict=True):
            if key not in _KERNELS and key not in new:
                name = f"kernel{len(_KERNELS) + len(new)}"
                new[key] = dataclasses.replace(launch.kernel, name=name)
        if new:
            loaded = _on_gpu if device.type == "cuda" else _on_cpu
            _KERNELS.update(zip(new, loaded(list(new.values()), device), strict=True))
        return {launch: _KERNELS[key] for key, launch in zip(keys, launches, strict=True)}


def _on_cpu(kernels: Sequence[Kernel], device: torch.device) -> list[int]:
    text = emit_module(kernels, function_attributes())
    return load(text, [kernel.name for kernel in kernels])


def _on_gpu(kernels: Sequence[Kernel], device: torch.device) -> list[int]:
    """Each by itself: the driver assembles several at the same time."""
    capability = torch.cuda.get_device_capability(device)
    with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
        loading = []
        for kernel in kernels:
            code = assemble(emit_grid([kernel]), capability)
            loading.append(pool.submit(load_on_gpu, code, [kernel.name], device.index))
        return [each.result()[0] for each in loading]


def _device_of(graph_module: fx.GraphModule) -> torch.device | None:
    """Where there is something to fuse, unless only torch itself can run some of the graph."""
    entry = entry_mode(graph_module)
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    if any("hooks" in n.meta or mode_of(n).inference != entry.inference for n in calls):
        return None
    leaves = [leaf for n in graph_module.graph.nodes for leaf in trees.leaves(n.meta.get("val"))]
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
    # Numbers may lie on the processor beside tensors on another device.
    device = next(iter(devices - {CPU} or devices), None)
    if len(devices - {CPU}) > 1 or device is None or device.type not in ("cpu", "cuda"):
        return None
    return device if any(is_plain(leaf, device) for leaf in leaves) else None


def _unknown_sizes(plan: Plan) -> bool:
    """Sizes that are known only in the middle of a run."""
    known = {symbol for symbol, _, _ in plan.symbols}
    sizes = [size for slot in plan.slots for size in (*(slot.shape or ()), *slot.strides)]
    sizes += [s for launch in _launches(plan) for s in launch.extents]
    return any(isinstance(size, sympy.Expr) and size.free_symbols - known for size in sizes)
