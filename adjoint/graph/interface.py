"""What the runtime relies on when it calls a graph: its inputs and outputs.

A pass may change how outputs are computed, but neither what they are nor what they depend on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from adjoint.graph.metadata import (
    describe_value,
    input_descriptors,
    output_descriptors,
    outputs_of,
    value_at,
)
from adjoint.torch_private.symbols import hint


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a graph, as the graph was when this was made."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[object, ...]
    """The fake values of the outputs."""

    def difference(self, other: Interface) -> str | None:
        """What is different in another graph that is to take the place of this one."""
        for kind, mine, theirs in (
            ("inputs", self.inputs, other.inputs),
            ("outputs", self.outputs, other.outputs),
        ):
            if mine != theirs:
                before, after = (", ".join(each) or "none" for each in (mine, theirs))
                return f"it changed the {kind} of the graph from {before} to {after}"
        for name, old, new in zip(self.outputs, self.values, other.values, strict=True):
            if not _alike(old, new):
                before, after = (
                    describe_value(each) if isinstance(each, torch.Tensor) else repr(each)
                    for each in (old, new)
                )
                return f"it changed {name} of the graph from {before} to {after}"
        return None


def interface_of(graph_module: fx.GraphModule) -> Interface:
    graph = graph_module.graph
    return Interface(
        tuple(each.describe() for each in input_descriptors(graph)),
        tuple(each.describe() for each in output_descriptors(graph)),
        tuple(value_at(each) for each in outputs_of(graph)),
    )


def _alike(one: object, other: object) -> bool:
    """Whether values have one shape, dtype and device in the captured call."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) == isinstance(other, torch.Tensor)
    if (one.dtype, one.device, one.dim()) != (other.dtype, other.device, other.dim()):
        return False
    return [hint(size) for size in one.shape] == [hint(size) for size in other.shape]
