"""Results that other results are computed from: there the graph is cut into segments.

In eager torch each result is a node of autograd's own graph, so that one can be differentiated with
respect to another, has hooks, and may retain its gradient.  A graph whose results are computed from
one another is therefore cut for differentiation: every value that crosses from one *segment* into a
later one, such as a result that is used further on, is an input of the later segment.  Each segment
is differentiated with respect to the inputs and to what it takes from earlier segments.  What runs
is still the graph in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.graph.copying import GraphCopy
from adjoint.graph.derivative import Segments, saved_output
from adjoint.graph.descriptors import DifferentiableOutput, EarlierResult
from adjoint.graph.metadata import (
    Mode,
    computes_tensor,
    inputs_of,
    output_descriptors,
    outputs_of,
    set_descriptor,
    set_output_descriptors,
    value_of,
)
from adjoint.graph.purity import remove_dead_code
from adjoint.torch_private.fake import fake_mode_of


def cut_into_segments(
    graph_module: fx.GraphModule, wrt: Sequence[int]
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """The graph with inputs for the values of earlier segments, and the outputs they stand for.

    The new inputs come last.  They stand for results that others are computed from, and for values
    that one segment computes and a later one uses, which become outputs after the results.  So the
    reverse sweep of a segment visits the nodes of that segment alone, and all cotangents of a value
    are summed before they are carried on, as in a sweep over the graph in one piece.
    """
    earlier = _earlier_results(graph_module, wrt)
    if not earlier:
        return graph_module, ()
    inputs = inputs_of(graph_module.graph)
    active = active_nodes(graph_module, wrt)
    segment = _levels(graph_module.graph, lambda found, n: found.get(n, 0) + (n in earlier))
    crossing = [
        node
        for node in graph_module.graph.nodes
        if node.op == "call_function"
        and node in active
        and node not in earlier
        and computes_tensor(node)
        and any(user in active and segment[user] > segment[node] for user in node.users)
    ]
    outputs = [*outputs_of(graph_module.graph), *crossing]
    described = [*output_descriptors(graph_module.graph)]
    described += [saved_output(place, 1) for place in range(len(described), len(outputs))]
    copy = GraphCopy(graph_module)
    for node in inputs:
        copy.add_input(node)
    entering: dict[fx.Node, fx.Node] = {}
    cuts = tuple(outputs.index(node) for node in [*earlier, *crossing])
    for place in cuts:
        node = outputs[place]
        entering[node] = copy.graph.placeholder(f"result_{place}")
        # A value stands for one node.
        with fake_mode_of(graph_module), torch.no_grad():
            entering[node].meta = {"val": value_of(node).detach(), "mode": Mode()}
        descriptor = described[place]
        assert isinstance(descriptor, DifferentiableOutput)
        set_descriptor(entering[node], EarlierResult(descriptor))
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op != "output":
            arguments = [each for each in node.all_input_nodes if each in entering]
            copy.add(node, {n: entering[n] for n in arguments if segment[n] < segment[node]})
    copy.returns(outputs)
    set_output_descriptors(copy.graph, tuple(described))
    return copy.finish(), cuts


def joined(graph_module: fx.GraphModule, cuts: Sequence[int]) -> fx.GraphModule:
    """The graph in one piece again: without the inputs that stand for its results."""
    copy = GraphCopy(graph_module)
    standing = _standing(graph_module.graph, cuts)
    for node in graph_module.graph.nodes:
        if node not in standing:
            arguments = [each for each in node.all_input_nodes if each in standing]
            copy.add(node, {each: copy.copies[standing[each]] for each in arguments})
    whole = copy.finish()
    remove_dead_code(whole.graph)
    return whole


def segments_of(
    graph_module: fx.GraphModule, wrt: Sequence[int], cuts: tuple[int, ...]
) -> Segments:
    """The segments of a cut graph: each output is in the one after the last result it reads."""
    inputs, outputs = inputs_of(graph_module.graph), outputs_of(graph_module.graph)
    standing = _standing(graph_module.graph, cuts)
    active = active_nodes(graph_module, wrt)
    segment = _levels(graph_module.graph, lambda found, n: _after(found, standing, n))
    uses: dict[fx.Node, set[int]] = {}
    for place, node in enumerate(inputs):
        uses[node] = {place} if node in active else set()
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        arguments = node.all_input_nodes
        uses[node] = set()
        if node in active:
            uses[node] = uses[node].union(*(uses[each] for each in arguments if each in active))
    of_output = tuple(segment.get(n, 0) if isinstance(n, fx.Node) else 0 for n in outputs)
    found: list[set[int]] = [set() for _ in range(max(of_output, default=0) + 1)]
    for node, number in zip(outputs, of_output, strict=True):
        if node in active:
            found[number] |= uses[node]
    return Segments(cuts, of_output, tuple(map(frozenset, found)))


def _levels(
    graph: fx.Graph, after: Callable[[Mapping[fx.Node, int], fx.Node], int]
) -> dict[fx.Node, int]:
    """The segment of each node: the latest `after` any of its arguments.

    A node without a derivative, too, is in no earlier segment than what it is computed from.
    """
    segment: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op != "placeholder":
            segment[node] = max((after(segment, each) for each in node.all_input_nodes), default=0)
    return segment


def _standing(graph: fx.Graph, cuts: Sequence[int]) -> dict[fx.Node, fx.Node]:
    """The inputs of a cut graph that stand for outputs of earlier segments, with these."""
    inputs, outputs = inputs_of(graph), outputs_of(graph)
    last = inputs[len(inputs) - len(cuts) :]
    return {node: outputs[place] for node, place in zip(last, cuts, strict=True)}


def _after(
    segment: Mapping[fx.Node, int], standing: Mapping[fx.Node, fx.Node], node: fx.Node
) -> int:
    """The earliest segment of what is computed from `node`."""
    return segment[standing[node]] + 1 if node in standing else segment.get(node, 0)


def _earlier_results(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[fx.Node]:
    """The computed results that other results depend on by differentiable steps, in their order."""
    active = active_nodes(graph_module, wrt)
    results = {
        n
        for n in outputs_of(graph_module.graph)
        if isinstance(n, fx.Node) and n.op == "call_function" and n in active
    }
    if len(results) < 2:
        return []
    leading: set[fx.Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if node in active and any(
            user in active and (user in results or user in leading) for user in node.users
        ):
            leading.add(node)
    return [node for node in graph_module.graph.nodes if node in results and node in leading]
