"""Chooses the target of a graph, by the option `target` and the device of its tensors."""

from __future__ import annotations

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.graph.metadata import entry_mode, has_hooks, mode_of, value_or_none
from adjoint.lower.selection import is_plain
from adjoint.options import Options
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.products import has_blas
from adjoint.target import CPU, REFERENCE, Target, cpu_target, cuda_target, loops_target
from adjoint.torch_private import trees


def target_of(graph_module: fx.GraphModule, options: Options) -> Target:
    """The target of the graph: `REFERENCE` if only torch itself can run it."""
    device = None if options.target == "reference" else _device_of(graph_module)
    return REFERENCE if device is None else target_on(device, options)


def target_on(device: torch.device, options: Options) -> Target:
    """The target for tensors on `device`, which must be available."""
    draws = device != CPU if options.eager_rng is None else not options.eager_rng
    match options.target:
        case "native" if device == CPU:
            return cpu_target(machines.host(), has_blas(), draws)
        case "native":
            capability = torch.cuda.get_device_capability(device)
            return cuda_target(device, capability, draws, options.cuda_graphs)
        case "loops" if device == CPU:
            return loops_target(draws)
        case "loops" | "reference":
            return REFERENCE
        case _:
            assert_never(options.target)


def _device_of(graph_module: fx.GraphModule) -> torch.device | None:
    """The device of the tensors to fuse; None if only torch itself can run the graph."""
    entry = entry_mode(graph_module)
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    if any(has_hooks(n) or mode_of(n).inference != entry.inference for n in calls):
        return None
    leaves = [leaf for n in graph_module.graph.nodes for leaf in trees.leaves(value_or_none(n))]
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
    # Scalars on the CPU may be mixed with tensors on another device.
    device = next(iter(devices - {CPU} or devices), None)
    if len(devices - {CPU}) > 1 or device is None or device.type not in ("cpu", "cuda"):
        return None
    return device if any(is_plain(leaf, device) for leaf in leaves) else None
