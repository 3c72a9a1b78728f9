"""lower -> emit -> load: a graph becomes native code for the processor or a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import sympy
import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.graph.boundary import failure_text, passes_through, warn_of_fallback, was_reported
from adjoint.graph.derivative import order_of_graph
from adjoint.loops.plan import Launch, Plan, RowTiles
from adjoint.loops.show import identity
from adjoint.loops.statements import Kernel
from adjoint.lower.planning import lower
from adjoint.observing import Observer, Sighting, unobserved
from adjoint.options import Options
from adjoint.pipeline import lowering
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.gpu.assembly import assemble
from adjoint.runtime.gpu.driver import load as load_on_gpu
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.loops import LoopProgram
from adjoint.runtime.plans.program import PlanProgram
from adjoint.target import Loader, Machine, Target
from adjoint.targets import target_of
from adjoint.torch_private import symbols
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import fake_mode_of

Key: TypeAlias = "tuple[torch.device, Machine | None, str]"

# Kernels of this process by where they run and what they do: programs share those that are the
# same, and each lives as long as a program that calls it.
_KERNELS: weakref.WeakValueDictionary[Key, NativeFunction] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()

# Each compiles a kernel, first by LLVM and then by the driver.
ASSEMBLERS = 16
_LOCK = threading.Lock()


DEFAULTS = Options(target="native")

# Runs the passes before lowering on a graph.
Rewrite: TypeAlias = Callable[[fx.GraphModule, Target], fx.GraphModule]


def _rewritten(graph_module: fx.GraphModule, target: Target) -> fx.GraphModule:
    for each in lowering(target):
        graph_module = each(graph_module)
    return graph_module


def native_program(
    graph_module: fx.GraphModule,
    options: Options = DEFAULTS,
    observer: Observer = unobserved,
    told: set[str] | None = None,
    rewritten: Rewrite = _rewritten,
) -> PlanProgram | None:
    """The graph as native code; None if it is to be run op by op.

    `rewritten` runs the passes before lowering.  If kernels draw random numbers, the program takes
    one more input (`Plan.streams`).  `told`: failures that the user knows of.
    """
    target = target_of(graph_module, options)
    called: frozenset[str] = frozenset()
    order = order_of_graph(graph_module.graph)
    if target.has_kernels:
        graph_module = rewritten(graph_module, target)
    begun = time.perf_counter()
    while (plan := _planned(graph_module, target, called)) is not None:
        observer(Sighting("lower", order, plan, time.perf_counter() - begun))
        begun = time.perf_counter()
        launches = plan.launches
        code, refused = _compiled(launches, target)
        observer(Sighting("emit", order, launches, time.perf_counter() - begun))
        if not refused:
            return _program(plan, code, target)
        begun = time.perf_counter()
        for launch, error in refused.items():
            if not was_reported(error, told):
                _warn(launch, error)
        # They are called as they are, and the rest is fused without them.
        nodes = {name for launch in refused for name in launch.nodes}
        if nodes <= called:
            return None
        called |= nodes
    return None


def plan_of(graph_module: fx.GraphModule, options: Options = DEFAULTS) -> Plan | None:
    """What the graph becomes where its tensors are; None if it is to be run op by op."""
    target = target_of(graph_module, options)
    if not target.has_kernels:
        return None
    return _planned(_rewritten(graph_module, target), target, frozenset())


def _program(plan: Plan, code: Mapping[Launch, NativeFunction], target: Target) -> PlanProgram:
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


def _planned(graph_module: fx.GraphModule, target: Target, called: frozenset[str]) -> Plan | None:
    """The plan, if there is anything native in it."""
    if not target.has_kernels:
        return None
    shape_env = fake_mode_of(graph_module).shape_env
    before = len(symbols.assumed(shape_env))
    with general_shapes(), symbols.assumptions(shape_env) as assumed:
        plan = lower(graph_module, target, called)
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
    launches: Sequence[Launch], target: Target
) -> tuple[dict[Launch, NativeFunction], dict[Launch, Exception]]:
    """The code of each, and which were refused."""
    if target.machine is None:
        return {}, {}
    keys = {launch: (target.device, target.machine, identity(launch.kernel)) for launch in launches}
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
        load_all = _load if target.loader is Loader.LLVM else _load_on_gpu
        made, refused = load_all(new, target)
        _KERNELS.update(made)
    found.update(made)
    return (
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
            loading[key] = pool.submit(_loaded_on_gpu, kernel, target)
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
