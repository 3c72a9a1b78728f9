"""lower -> emit -> load: a graph becomes native code for the processor."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sympy
import torch
from torch import fx

from adjoint.emit.llvm import emit_module
from adjoint.errors import FallbackWarning
from adjoint.graph.evaluation import entry_mode
from adjoint.graph.metadata import mode_of
from adjoint.loops.plan import Launch, Plan, Tiles
from adjoint.loops.show import identity
from adjoint.loops.statements import Kernel
from adjoint.lower.planning import is_plain, lower
from adjoint.runtime.cpu.engine import LLVMError, function_attributes, load
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.cpu.tiles import has_blas
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import fake_mode_of

# Kernels of this process by what they do: programs share those that are the same.
_KERNELS: dict[str, int] = {}
_NUMBERS = itertools.count()
_LOCK = threading.Lock()


def native_program(graph_module: fx.GraphModule) -> CpuProgram | None:
    """The graph as native code; None if it is to be run op by op."""
    if not _is_worth_it(graph_module):
        return None
    called: frozenset[str] = frozenset()
    while (plan := _planned(graph_module, called)) is not None:
        addresses, refused = _compiled(list(_launches(plan)))
        if not refused:
            return CpuProgram(plan, addresses)
        for launch, error in refused.items():
            _warn(launch, error)
        # They are called as they are, and the rest is fused without them.
        nodes = {name for launch in refused for name in launch.nodes}
        if nodes <= called:
            return None
        called |= nodes
    return None


def _warn(launch: Launch, error: Exception) -> None:
    lines = "".join(f"\n  at {line}" for line in launch.kernel.lines)
    warnings.warn(
        f"{', '.join(launch.nodes) or launch.kernel.name} run op by op, because LLVM refused "
        f"their kernel: {error}{lines}",
        FallbackWarning,
        stacklevel=2,
    )


def _planned(graph_module: fx.GraphModule, called: frozenset[str]) -> Plan | None:
    """The plan, if there is anything native in it."""
    shape_env = fake_mode_of(graph_module).shape_env
    before = len(symbols.assumed(shape_env))
    with general_shapes(), symbols.assumptions(shape_env) as assumed:
        plan = lower(graph_module, has_blas(), called)
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
        elif isinstance(step, Tiles):
            yield from step.begin
            yield from (each for each in step.body if isinstance(each, Launch))


def _compiled(launches: Sequence[Launch]) -> tuple[dict[Launch, int], dict[Launch, Exception]]:
    """Where the code of each is, and which were refused."""
    keys = {launch: identity(launch.kernel) for launch in launches}
    with _LOCK:
        new: dict[str, Kernel] = {}
        for launch, key in keys.items():
            if key not in _KERNELS and key not in new:
                name = f"kernel{next(_NUMBERS)}"
                new[key] = dataclasses.replace(launch.kernel, name=name)
        refused = _load(new) if new else {}
        return (
            {launch: _KERNELS[key] for launch, key in keys.items() if key not in refused},
            {launch: refused[key] for launch, key in keys.items() if key in refused},
        )


def _load(kernels: Mapping[str, Kernel]) -> dict[str, Exception]:
    """Compile all as one module; if that fails, each by itself.  Returns those that fail."""
    try:
        text = emit_module(list(kernels.values()), function_attributes())
        found = load(text, [kernel.name for kernel in kernels.values()])
    except (LLVMError, NotImplementedError) as error:
        if len(kernels) == 1:
            return dict.fromkeys(kernels, error)
        alone = [_load({key: kernel}) for key, kernel in kernels.items()]
        return {key: failure for failures in alone for key, failure in failures.items()}
    _KERNELS.update(zip(kernels, found, strict=True))
    return {}


def _is_worth_it(graph_module: fx.GraphModule) -> bool:
    """Whether there is something to fuse, and nothing that only torch itself can run."""
    entry = entry_mode(graph_module)
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    if any("hooks" in n.meta or mode_of(n).inference != entry.inference for n in calls):
        return False
    values = [leaf for n in graph_module.graph.nodes for leaf in trees.leaves(n.meta.get("val"))]
    return any(map(is_plain, values)) and all(
        leaf.device.type == "cpu" for leaf in values if isinstance(leaf, torch.Tensor)
    )


def _can_be_checked(graph_module: fx.GraphModule, assumed: Iterable[sympy.Basic]) -> bool:
    """Each of these sizes is that of an input."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    known = {symbol for symbol, _, _ in symbols.shown(node.meta.get("val") for node in inputs)}
    return all(expr.free_symbols <= known for expr in assumed)


def _unknown_sizes(plan: Plan) -> bool:
    """Sizes that are known only in the middle of a run."""
    known = {symbol for symbol, _, _ in plan.symbols}
    sizes = [size for slot in plan.slots for size in (*(slot.shape or ()), *slot.strides)]
    sizes += [s for launch in _launches(plan) for s in launch.extents]
    return any(isinstance(size, sympy.Expr) and size.free_symbols - known for size in sizes)
