"""lower -> emit -> load: a graph becomes native code for the processor or a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import sympy
import torch
from torch import fx

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.graph.boundary import failure_text, passes_through, warn_of_fallback, was_reported
from adjoint.graph.metadata import entry_mode, mode_of
from adjoint.loops.plan import Launch, Plan, RowTiles
from adjoint.loops.show import identity
from adjoint.loops.statements import Kernel
from adjoint.lower.planning import CPU, is_plain, lower
from adjoint.observing import Observer, unobserved
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.runtime.cpu.machines import Machine
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.tiles import has_blas
from adjoint.runtime.gpu.assembly import assemble
from adjoint.runtime.gpu.driver import load as load_on_gpu
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import fake_mode_of

Key: TypeAlias = "tuple[torch.device | Machine, str]"

# Kernels of this process by where they run and what they do: programs share those that are the
# same, and each lives as long as a program that calls it.
_KERNELS: weakref.WeakValueDictionary[Key, NativeFunction] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()

# Each compiles a kernel, first by LLVM and then by the driver.
ASSEMBLERS = 16
_LOCK = threading.Lock()


def native_program(
    graph_module: fx.GraphModule,
    recorded: bool = True,
    eager_rng: bool | None = None,
    saw: Observer = unobserved,
    told: set[str] | None = None,
) -> CpuProgram | None:
    """The graph as native code; None if it is to be run op by op.

    `recorded`: a GPU may be told to do again what it did.  `eager_rng`: random numbers are eager's;
    if they are not, the program takes one more input (`Plan.streams`).  `told`: failures that the
    user knows of.
    """
    device = _device_of(graph_module)
    if device is None:
        return None
    called: frozenset[str] = frozenset()
    draws = _draws(eager_rng, device)
    while (plan := _planned(graph_module, device, called, draws)) is not None:
        launches = saw("lower", list(_launches(plan)))
        code, refused = _compiled(launches, device)
        saw("emit", launches)
        if not refused:
            if device == CPU:
                return CpuProgram(plan, code)
            return GpuProgram(plan, code, device, recorded)
        for launch, error in refused.items():
            if not was_reported(error, told):
                _warn(launch, error)
        # They are called as they are, and the rest is fused without them.
        nodes = {name for launch in refused for name in launch.nodes}
        if nodes <= called:
            return None
        called |= nodes
    return None


def plan_of(graph_module: fx.GraphModule, eager_rng: bool | None = None) -> Plan | None:
    """What the graph becomes where its tensors are; None if it is to be run op by op."""
    device = _device_of(graph_module)
    if device is None:
        return None
    return _planned(graph_module, device, frozenset(), _draws(eager_rng, device))


def _draws(eager_rng: bool | None, device: torch.device) -> bool:
    """Kernels draw random numbers: unless told otherwise, on a GPU."""
    return device != CPU if eager_rng is None else not eager_rng


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


def _planned(
    graph_module: fx.GraphModule, device: torch.device, called: frozenset[str], draws: bool
) -> Plan | None:
    """The plan, if there is anything native in it."""
    shape_env = fake_mode_of(graph_module).shape_env
    before = len(symbols.assumed(shape_env))
    with general_shapes(), symbols.assumptions(shape_env) as assumed:
        plan = lower(graph_module, device, has_blas(), device != CPU, called, draws)
    # What was assumed for another graph of these symbols, torch takes for granted here as well.
    plan = dataclasses.replace(plan, assumed=tuple(assumed))
    launches = list(_launches(plan))
    if not launches or _unknown_sizes(plan) or not _can_be_checked(graph_module, assumed[before:]):
        return None
    return plan


def _launches(plan: Plan) -> Iterator[Launch]:
    for step in plan.steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, RowTiles):
            yield from step.begin
            yield from (each for each in step.body if isinstance(each, Launch))


def _compiled(
    launches: Sequence[Launch], device: torch.device
) -> tuple[dict[Launch, NativeFunction], dict[Launch, Exception]]:
    """The code of each, and which were refused."""
    where = machines.host() if device == CPU else device
    keys = {launch: (where, identity(launch.kernel)) for launch in launches}
    with _LOCK:
        found: dict[Key, NativeFunction] = {}
        new: dict[Key, Kernel] = {}
        for launch, key in keys.items():
            function = _KERNELS.get(key)
            if function is not None:
                found[key] = function
            elif key not in new:
                name = f"kernel{next(_NUMBERS)}"
                new[key] = dataclasses.replace(launch.kernel, name=name)
        made, refused = _load(new) if device == CPU else _load_on_gpu(new, device)
        _KERNELS.update(made)
    found.update(made)
    return (
        {launch: found[key] for launch, key in keys.items() if key in found},
        {launch: refused[key] for launch, key in keys.items() if key in refused},
    )


Loaded: TypeAlias = tuple[dict[Key, NativeFunction], dict[Key, Exception]]


def _load(kernels: Mapping[Key, Kernel]) -> Loaded:
    """Compile all as one module; if that fails, each by itself.  Also returns those that fail."""
    if not kernels:
        return {}, {}
    try:
        text = emit_module(list(kernels.values()), machines.host().attributes)
        found = load(text, [kernel.name for kernel in kernels.values()])
    except Exception as error:
        if passes_through(error):
            raise
        if len(kernels) == 1:
            return {}, dict.fromkeys(kernels, error)
        made: dict[Key, NativeFunction] = {}
        failed: dict[Key, Exception] = {}
        for key, kernel in kernels.items():
            alone, failures = _load({key: kernel})
            made.update(alone)
            failed.update(failures)
        return made, failed
    return dict(zip(kernels, found, strict=True)), {}


def _load_on_gpu(kernels: Mapping[Key, Kernel], device: torch.device) -> Loaded:
    """Each by itself: the driver assembles several at a time.  Also returns those that fail."""
    made: dict[Key, NativeFunction] = {}
    failed: dict[Key, Exception] = {}
    loading: dict[Key, Future[NativeFunction]] = {}
    with ThreadPoolExecutor(max_workers=ASSEMBLERS) as pool:
        for key, kernel in kernels.items():
            loading[key] = pool.submit(_loaded_on_gpu, kernel, device)
    for key, future in loading.items():
        error = future.exception()
        if isinstance(error, Exception) and not passes_through(error):
            failed[key] = error
        else:
            made[key] = future.result()
    return made, failed


def _loaded_on_gpu(kernel: Kernel, device: torch.device) -> NativeFunction:
    capability = torch.cuda.get_device_capability(device)
    code = assemble(emit_grid([kernel], vector_atomics=capability >= (9, 0)), capability)
    return load_on_gpu(code, [kernel.name], device.index)[0]


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


def _can_be_checked(graph_module: fx.GraphModule, assumed: Iterable[sympy.Basic]) -> bool:
    """Each of these sizes is that of an input."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    known = {
        symbol for symbol, _, _ in symbols.symbol_positions(node.meta.get("val") for node in inputs)
    }
    return all(expr.free_symbols <= known for expr in assumed)


def _unknown_sizes(plan: Plan) -> bool:
    """Sizes that are known only in the middle of a run."""
    known = {symbol for symbol, _, _ in plan.symbols}
    sizes = [size for slot in plan.slots for size in (*(slot.shape or ()), *slot.strides)]
    sizes += [s for launch in _launches(plan) for s in launch.extents]
    return any(isinstance(size, sympy.Expr) and size.free_symbols - known for size in sizes)
