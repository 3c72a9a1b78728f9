"""What checkpoints say about saving: inside of one, values are recomputed for its own derivative.

A value that an operator of a checkpoint computes, and that a derivative of the same checkpoint
reads, is recomputed in the backward graph; a value that leaves the checkpoint is saved there if it
is needed, and so is what the checkpoint takes from outside.  Selective checkpointing names further
values to save.  Random draws are saved, so that numbers are the same when what follows them is
recomputed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import fx

from adjoint.graph.metadata import (
    computes_tensor,
    next_run,
    region_of,
    run_of,
    set_region,
    tensor_of,
    value_or_none,
)
from adjoint.graph.purity import is_impure
from adjoint.torch_private.symbols import SYMBOLIC

# A run of a checkpoint, or None outside of all.
Run: TypeAlias = "tuple[int, int] | None"

# By name, because `CheckpointPolicy` has not all of them in every version of torch.
_OFFLOADING = frozenset({"MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"})
_SAVING = _OFFLOADING | {"MUST_SAVE"}
_RECOMPUTING = frozenset({"", "MUST_RECOMPUTE", "PREFER_RECOMPUTE"})


@dataclass
class Needs:
    """What reverse nodes need, after everything inside of checkpoints is recomputed."""

    values: dict[fx.Node, None] = field(default_factory=dict)
    """Values that are saved, or recomputed if that is cheap."""
    marked: set[fx.Node] = field(default_factory=set)
    """Those among them that a policy wants saved."""
    recomputed: set[fx.Node] = field(default_factory=set)
    """Values of checkpoints that are recomputed."""


def is_recomputed(node: fx.Node) -> bool:
    """Whether a checkpoint wants the value recomputed, and that is possible.

    With `PREFER_SAVE` the value is saved unless recomputing it is cheap, as outside of checkpoints.
    """
    region = region_of(node)
    if region is None or region.policy not in _RECOMPUTING or node.op != "call_function":
        return False
    # A size is saved as a number.
    return not isinstance(value_or_none(node), SYMBOLIC) and not is_impure(producer_of(node))


def is_offloaded(node: fx.Node) -> bool:
    """Whether a checkpoint wants the value saved in host memory, and it is not there already."""
    region = region_of(node)
    if region is None or region.policy not in _OFFLOADING or not computes_tensor(node):
        return False
    value = tensor_of(node)
    # Nothing can be copied into strides in which elements overlap.
    return is_on_device(value) and value.layout is torch.strided and 0 not in value.stride()


def is_on_device(value: torch.Tensor) -> bool:
    """Whether the memory of the value is that of a device, and not the host's."""
    return value.is_cuda


def needs_of(reads: Iterable[tuple[fx.Node, Run]], is_free: Callable[[fx.Node], bool]) -> Needs:
    """What has to be available where the values `reads` are read, each by a node of that run.

    `is_free`: recomputing the node costs nothing.
    """
    needs = Needs()
    visited: set[tuple[fx.Node, Run]] = set()
    work = list(reads)
    while work:
        node, run = work.pop()
        if (node, run) in visited:
            continue
        visited.add((node, run))
        if is_free(node):
            # A saved view is its tensor, saved.
            inner = None if _is_saved(node) else run
            work += [(each, inner) for each in node.all_input_nodes]
        elif run is not None and run == run_of(node) and is_recomputed(node):
            needs.recomputed.add(node)
            work += [(each, run) for each in node.all_input_nodes]
        else:
            needs.values[node] = None
            if _is_saved(node):
                needs.marked.add(node)
    return needs


def mark_as_recomputed(graph: fx.Graph) -> None:
    """Mark the nodes of checkpoints in a backward graph as another run of them."""
    number = next_run()
    for node in graph.nodes:
        region = region_of(node)
        if region is not None:
            set_region(node, replace(region, recomputed=number))


def _is_saved(node: fx.Node) -> bool:
    region = region_of(node)
    return region is not None and region.policy in _SAVING


def producer_of(node: fx.Node) -> fx.Node:
    """The operator whose result, or an item of it, is the value of `node`."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node
