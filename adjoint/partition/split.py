"""Splitting a joint graph: which values the forward graph keeps for the backward graph.

A value that the reverse nodes need is either saved or recomputed.  A minimum cut finds the fewest
bytes to save from which the rest can be recomputed by operators that cost little when fused with
their readers.  Inside of a checkpoint everything is recomputed (`partition/marks.py`).  An input is
saved only if a derivative formula reads it, as in eager, or a checkpoint takes it: saving others
would raise errors where the user writes to them.  A recomputed value is computed right before its
first use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.graph.derivative import Backward, Joint, saved_output
from adjoint.graph.descriptors import Gradient, Input, Output, SavedInput, Tangent
from adjoint.graph.metadata import (
    derivative_order,
    descriptor_of,
    output_descriptors,
    outputs_of,
    run_of,
    set_descriptor,
    set_output_descriptors,
    value_or_none,
)
from adjoint.graph.origins import Origin, have
from adjoint.graph.purity import is_impure
from adjoint.graph.reachability import reachable
from adjoint.host_memory import to_host
from adjoint.partition.extraction import descendants, extract, first_reached, used_values
from adjoint.partition.flow import UNBOUNDED, Network
from adjoint.partition.marks import is_offloaded, is_recomputed, mark_as_recomputed, needs_of
from adjoint.partition.offloading import back_from_host_memory, to_host_memory
from adjoint.partition.recomputing import is_cheap, is_free
from adjoint.partition.sizes import is_earlier_result, read_sizes_of, sizes_beside
from adjoint.torch_private.symbols import hint

aten = torch.ops.aten


@dataclass(frozen=True)
class Forward:
    """A graph that also returns what its backward graphs need."""

    graph_module: fx.GraphModule
    results: int
    """How many of its outputs are results of the original graph; the rest are saved values."""
    saved: tuple[Input, ...]
    """The saved inputs and, as `SavedInput`, the saved outputs, some of which may be results."""
    nodes: tuple[fx.Node | None, ...]
    """For each output, its node in the joint graph."""


def is_tangent(node: fx.Node, order: int) -> bool:
    """Whether this is a tangent that the differentiation of this order added."""
    if node.op != "placeholder":
        return False
    descriptor = descriptor_of(node)
    return isinstance(descriptor, Tangent) and descriptor.order == order


class Split:
    """The parts of one joint graph."""

    def __init__(self, joint: Joint, recomputes: bool = True) -> None:
        """`recomputes`: values outside of checkpoints are recomputed if that saves memory."""
        self.recomputes = recomputes
        self.joint = joint.graph_module
        self.order = order = joint.order
        self.zeros = joint.zeros
        graph = self.joint.graph
        self.inputs = [n for n in graph.nodes if n.op == "placeholder"]
        self.tangents = [n for n in self.inputs if is_tangent(n, order)]
        self.primals = [n for n in self.inputs if n not in set(self.tangents)]
        returned = list(zip(outputs_of(graph), output_descriptors(graph), strict=True))
        new = [isinstance(d, Gradient) and d.order == order for _, d in returned]
        self.results = [pair for pair, added in zip(returned, new, strict=True) if not added]
        self.gradients = [pair for pair, added in zip(returned, new, strict=True) if added]
        # Nodes that a rule computes from primal values alone run in the backward graph too, so that
        # their results need not be saved.
        self.reverse = {
            node for node in graph.nodes if derivative_order(node) == order
        } | descendants(graph, self.tangents)

    @property
    def forward_nodes(self) -> list[fx.Node]:
        """The nodes of the program itself, without inputs."""
        calls = (node for node in self.joint.graph.nodes if node.op == "call_function")
        return [node for node in calls if node not in self.reverse]

    def values(self, origins: Collection[Origin]) -> list[fx.Node]:
        """The forward nodes that compute these values."""
        return have((n for n in self.joint.graph.nodes if n not in self.reverse), origins)

    def needed(self, also: Sequence[fx.Node] = ()) -> list[fx.Node]:
        """The values to save for the reverse nodes, in graph order, besides `also`."""
        reads = [
            (each, run_of(node))
            for node in reversed(self.joint.graph.nodes)
            if node in self.reverse
            for each in node.all_input_nodes
        ]
        reads += [(node, None) for node, _ in self.gradients if isinstance(node, fx.Node)]
        # Derivatives of other subsets of results may need these; they need not be saved themselves.
        reads += [(node, run_of(node)) for node in also if is_recomputed(node)]
        needs = needs_of(((n, run) for n, run in reads if n not in self.reverse), is_free)
        kept = {*needs.marked, *(node for node in also if not is_recomputed(node))}
        saved = self._fewest_bytes(needs.values, kept)
        if needs.recomputed:
            ends = [*(node for node, _ in reads), *kept.intersection(also)]
            saved = list(first_reached(ends, set(saved), self.reverse))
        order = {node: i for i, node in enumerate(self.joint.graph.nodes)}
        return sorted(saved, key=order.__getitem__)

    def _fewest_bytes(self, needed: Iterable[fx.Node], saved: Set[fx.Node]) -> list[fx.Node]:
        """The values of fewest bytes from which `needed` can be recomputed.

        Those in `saved` are saved in any case and cost nothing.
        """
        network: Network[object] = Network()
        wanted = set(needed)
        visited = reachable(
            wanted, lambda node: node.all_input_nodes if self._may_recompute(node) else ()
        )
        held = self._held(wanted, visited)
        for node in visited:
            if node in wanted:
                network.add((node, "out"), "sink", UNBOUNDED)
            # A result of an earlier segment is an input of this graph, but not one of the user's.
            is_input = node.op == "placeholder" and not is_earlier_result(node)
            cost = (0 if node in wanted else UNBOUNDED) if is_input else _bytes(node)
            cost = 0 if node in saved else cost
            network.add((node, "in"), (node, "out"), cost)
            if node in held or not self._may_recompute(node):
                network.add("source", (node, "in"), UNBOUNDED)
                continue
            for each in node.all_input_nodes:
                network.add((each, "out"), (node, "in"), UNBOUNDED)
        near = network.reachable_without("source", "sink")
        return [n for n in visited if (n, "in") in near and (n, "out") not in near]

    def _may_recompute(self, node: fx.Node) -> bool:
        """Whether to recompute the node if that saves memory.

        A value of a checkpoint is recomputed for the derivatives of the same checkpoint only.
        """
        if is_free(node):
            return True
        return self.recomputes and is_cheap(node) and not is_recomputed(node)

    def _held(self, wanted: set[fx.Node], region: set[fx.Node]) -> set[fx.Node]:
        """Values whose recomputation saves no memory, because they would be held for long.

        In a chain `x1 = x0 + f0, x2 = x1 + f1, ...` the backward graph reads the last value first.
        Recomputing it from `x0` computes all the others too, and they stay in memory until they are
        read: as much memory as saving them, plus that of `f0, f1, ...`.  In general, this holds for
        a value that is read at several times and computed from a value that is read at another.
        """
        first = self._first_needed()
        times: dict[fx.Node, int] = {}
        held: set[fx.Node] = set()
        for node in reversed(self.joint.graph.nodes):
            if node not in region:
                continue
            # A bit set of times.
            times[node] = 1 << first[node] if node in wanted and node in first else 0
            for user in node.users:
                if user in region and self._may_recompute(user):
                    times[node] |= times[user]
        for node in region:
            several = times[node].bit_count() > 1
            if several and any(times.get(each, 0) & ~times[node] for each in node.all_input_nodes):
                held.add(node)
        return held

    def _first_needed(self) -> dict[fx.Node, int]:
        """For each value, when it is first read: how many products in sequence come before."""
        products: dict[fx.Node, int] = {}
        first: dict[fx.Node, int] = {}
        for node in self.joint.graph.nodes:
            if node in self.reverse:
                before = max((products.get(n, 0) for n in node.all_input_nodes), default=0)
                is_product = getattr(node.target, "overloadpacket", None) in _PRODUCTS
                products[node] = before + is_product
        for node in reversed(self.joint.graph.nodes):
            if node in self.reverse:
                found = products[node]
            elif is_free(node) and node in first:
                found = first[node]
            else:
                continue
            for each in node.all_input_nodes:
                if each not in self.reverse:
                    first[each] = min(found, first.get(each, found))
        return first

    def forward(self, also: Sequence[fx.Node] = ()) -> Forward:
        """The forward graph, which also returns the values that the reverse nodes need.

        And those of `also`, or what they are recomputed from.
        """
        kept = [node for node in also if not is_recomputed(node)]
        needed = list(dict.fromkeys([*self.needed(also), *kept]))
        primals = [node for node in self.joint.graph.nodes if node not in self.reverse]
        needed += sizes_beside(needed, primals)
        returned = {node for node, _ in self.results}
        needed = [
            to_host_memory(node) if is_offloaded(node) and node not in returned else node
            for node in needed
        ]
        primals_needed = [node for node in needed if node in set(self.primals)]
        places = {node: i for i, (node, _) in reversed(list(enumerate(self.results)))}
        outputs = [node for node, _ in self.results]
        descriptors: list[Output] = [descriptor for _, descriptor in self.results]
        saved = [descriptor_of(node) for node in primals_needed]
        for node in needed:
            if node in primals_needed:
                continue
            if node not in places:
                places[node] = len(outputs)
                outputs.append(node)
                descriptors.append(saved_output(places[node], self.order))
            saved.append(SavedInput(saved_output(places[node], self.order)))
        kept = [n for n in self.joint.graph.nodes if is_impure(n) and n not in self.reverse]
        graph_module, _ = extract(self.joint, self.primals, outputs, kept)
        set_output_descriptors(graph_module.graph, tuple(descriptors))
        return Forward(graph_module, len(self.results), tuple(saved), tuple(outputs))

    def backward(self, nodes: Sequence[fx.Node | None], saved: Sequence[Input]) -> Backward:
        """The backward graph, whose inputs are values that a forward graph saved, and tangents.

        `nodes`: for each output of the forward graph, its node in this joint graph.
        """
        inputs = {descriptor_of(node): node for node in self.primals}
        available: dict[fx.Node, Input] = {}
        for descriptor in saved:
            if descriptor not in inputs:
                assert isinstance(descriptor, SavedInput)
                node = nodes[descriptor.of.index]
                assert node is not None
                available.setdefault(node, descriptor)
        available.update({inputs[each]: each for each in saved if each in inputs})
        for node in available:
            if node.target is to_host:
                back_from_host_memory(node)
        read_sizes_of([*available, *self.tangents], self.joint.graph, available)
        gradients = [node for node, _ in self.gradients]
        # Random draws of a backward formula happen when the backward graph runs.
        drawn = [n for n in self.joint.graph.nodes if n in self.reverse and is_impure(n)]
        used = used_values(self.joint, available, self.tangents, [*gradients, *drawn], set(drawn))
        outputs = [n for n in used if available[n] not in inputs]
        late = descendants(self.joint.graph, self.tangents)
        given = [*(n for n in used if available[n] in inputs), *outputs, *self.tangents]
        graph_module, copies = extract(self.joint, given, gradients, drawn, late)
        for node in outputs:
            set_descriptor(copies[node], available[node])
        mark_as_recomputed(graph_module.graph)
        set_output_descriptors(graph_module.graph, tuple(d for _, d in self.gradients))
        return Backward(graph_module, self.zeros)

    def transposed(self) -> fx.GraphModule:
        """The graph that computes the gradients of this order from primals and its tangents."""
        gradients = [node for node, _ in self.gradients]
        graph_module, _ = extract(self.joint, [*self.primals, *self.tangents], gradients)
        set_output_descriptors(graph_module.graph, tuple(d for _, d in self.gradients))
        return graph_module


def narrowed(backward: Backward, wanted: Set[int]) -> Backward:
    """The backward graph that returns only the gradients at positions `wanted`, others as None."""
    graph = backward.graph_module.graph
    returned = outputs_of(graph)
    kept = [node if place in wanted else None for place, node in enumerate(returned)]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    graph_module, _ = extract(backward.graph_module, inputs, kept)
    set_output_descriptors(graph_module.graph, output_descriptors(graph))
    left = [each.of for place, each in enumerate(backward.gradients) if place in wanted]
    return Backward(graph_module, backward.zeros & frozenset(left))


def _bytes(node: fx.Node) -> int:
    value = value_or_none(node)
    if not isinstance(value, torch.Tensor):
        return UNBOUNDED if isinstance(value, (tuple, list)) else 1
    return 1 + math.prod(hint(size) for size in value.shape) * value.dtype.itemsize


# Operators that are not fused: values read before and after one are needed at different times.
_PRODUCTS = frozenset(
    {
        aten.addbmm,
        aten.addmm,
        aten.addmv,
        aten.baddbmm,
        aten.bmm,
        aten.convolution,
        aten.convolution_backward,
        aten.mm,
        aten.mv,
    }
)
