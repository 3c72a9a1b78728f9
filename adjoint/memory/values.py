"""Saved values, each with the reason why it is saved and what recomputing it would cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.errors import SourceLine
from adjoint.graph.derivative import Derivative
from adjoint.graph.descriptors import Input
from adjoint.graph.metadata import (
    describe_dtype,
    descriptor_of,
    grad_of,
    inputs_of,
    operand_of,
    output_descriptors,
    outputs_of,
    region_of,
    source_of,
    value_or_none,
)
from adjoint.graph.purity import is_impure
from adjoint.graph.reachability import reachable
from adjoint.host_memory import to_host
from adjoint.partition.marks import is_recomputed, producer_of
from adjoint.partition.recomputing import is_cheap, is_free
from adjoint.rules.costs import Cost, cost_of
from adjoint.torch_private.symbols import hint


@dataclass(frozen=True)
class SavedValue:
    """A value that the forward program keeps for the backward program."""

    name: str
    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: it is a number."""
    op: str
    """The operator that computes it; for an input, what the input is."""
    source: SourceLine | None
    """The user's line that computes it."""
    needed_by: tuple[str, ...]
    """The operators whose derivatives read it, or what is recomputed from it, with their lines."""
    why: str
    cost: Cost
    """Of recomputing it from other saved values."""
    exists_anyway: bool
    """It is an input or a result of the program, and takes no memory of its own."""
    in_host_memory: bool = False
    """It waits in host memory, and takes none on the device."""

    @property
    def is_held(self) -> bool:
        """Whether it takes memory only for the backward program."""
        return not self.exists_anyway and not self.in_host_memory

    @property
    def described(self) -> str:
        """Dtype and shape, such as `f32[3, 4]`."""
        if self.dtype is None:
            return "a number"
        return f"{describe_dtype(self.dtype)}[{', '.join(map(str, self.shape))}]"


def explained(derivative: Derivative) -> tuple[SavedValue, ...]:
    """The saved values of a derivative, the largest first."""
    graph = derivative.graph_module.graph
    outputs = outputs_of(graph)
    saved = derivative.saved_from(inputs_of(graph), outputs)
    described = output_descriptors(graph)
    results = {
        node: described[i] for i, node in reversed([*enumerate(outputs)]) if i < derivative.results
    }
    readers = _readers(derivative)
    found = [
        _explained(node, descriptor, readers.get(descriptor, ()), set(saved), node in results)
        for node, descriptor in zip(saved, _descriptors(derivative), strict=True)
    ]
    return tuple(sorted(found, key=lambda each: -each.bytes))


def _descriptors(derivative: Derivative) -> list[Input]:
    """The saved values as inputs of backward graphs: saved inputs first, then saved outputs."""
    known = {descriptor_of(n) for n in inputs_of(derivative.graph_module.graph)}
    inputs = [each for each in derivative.saved if each in known]
    return [*inputs, *(each for each in derivative.saved if each not in known)]


def _explained(
    node: fx.Node,
    descriptor: Input,
    needed_by: tuple[str, ...],
    saved: Set[fx.Node],
    is_result: bool,
) -> SavedValue:
    name, in_host_memory = node.name, node.target is to_host
    node = operand_of(node) if in_host_memory else node
    value = value_or_none(node)
    is_tensor = isinstance(value, torch.Tensor)
    shape = tuple(hint(size) for size in value.shape) if is_tensor else ()
    count = math.prod(shape)
    is_input = node.op == "placeholder"
    return SavedValue(
        name,
        count * value.dtype.itemsize if is_tensor else 8,
        shape,
        value.dtype if is_tensor else None,
        descriptor.describe() if is_input else str(producer_of(node).target),
        source_of(producer_of(node)),
        needed_by,
        _why(node, is_result),
        recomputation(node, saved),
        is_input or is_result,
        in_host_memory,
    )


def _why(node: fx.Node, is_result: bool) -> str:
    region = region_of(node)
    if node.op == "placeholder":
        return "it is an input, which exists anyway"
    if is_result:
        return "it is a result of the program, which exists anyway"
    if not isinstance(value_or_none(node), torch.Tensor):
        return "it is a number"
    if region is not None and region.policy and not is_recomputed(node):
        return f"the policy of checkpoint #{region.index} is {region.policy}"
    if is_impure(producer_of(node)):
        return "it was drawn at random, and would be drawn anew"
    if region is not None and is_recomputed(node):
        return f"it leaves checkpoint #{region.index}, inside of which all is recomputed"
    if is_cheap(node) or is_free(node):
        return "what it is cheaply computed from is larger, or would be kept for as long"
    return "recomputing it takes longer than storing and loading it"


def _readers(derivative: Derivative) -> dict[Input, tuple[str, ...]]:
    """For each saved value: the operators whose derivatives read it, or what is made of it."""
    found: dict[Input, tuple[str, ...]] = {}
    graph = derivative.first_backward.graph_module.graph
    for node in inputs_of(graph):
        found[descriptor_of(node)] = tuple(dict.fromkeys(_derivatives_of(node)))
    return found


def _derivatives_of(node: fx.Node) -> Iterator[str]:
    """The operators whose derivatives first read the value, or what is recomputed from it."""
    visited, work = {node}, [node]
    while work:
        for user in work.pop().users:
            if user in visited or user.op == "output":
                continue
            visited.add(user)
            owner = grad_of(user)
            if owner is None:
                work.append(user)
                continue
            line = source_of(user)
            yield f"{owner.op} ({line.file.rpartition('/')[2]}:{line.line})" if line else owner.op


def recomputation(node: fx.Node, saved: Set[fx.Node]) -> Cost:
    """The cost of recomputing a value from other saved values and inputs."""

    def is_there(each: fx.Node) -> bool:
        return each.op == "placeholder" or (each in saved and each is not node)

    needed = reachable([node], lambda each: () if is_there(each) else each.all_input_nodes)
    return sum((cost_of(each) for each in needed if not is_there(each)), Cost())
