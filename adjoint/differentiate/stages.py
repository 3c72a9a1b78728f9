"""Results that other results are computed from: the graph is cut there, into stages.

In eager torch each result is a node of autograd's own graph, so that one can be differentiated with
respect to another, has hooks, and may retain its gradient.  A graph whose results are computed from
one another is therefore cut: where a result is used further on, it is an input.  Results are then
differentiated in *stages*, each with respect to the inputs and to the results of earlier stages.
What runs is still one graph: there a result is what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.copying import inputs_of
from adjoint.graph.descriptors import EarlierResult
from adjoint.graph.metadata import Mode, output_descriptors, outputs_of, set_descriptor
from adjoint.graph.purity import remove_dead_code
from adjoint.torch_private.fake import fake_mode_of
from adjoint.torch_private.graph_modules import module_of


def cut_at_results(
    graph_module: fx.GraphModule, wrt: Sequence[int]
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """The graph with an input in place of each result that others are computed from, where they
    are; and which results these are, in the order of the inputs, which come last.
    """
    outputs = outputs_of(graph_module.graph)
    earlier = _earlier_results(graph_module, wrt)
    if not earlier:
        return graph_module, ()
    described = output_descriptors(graph_module.graph)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs_of(graph_module):
        copies[node] = graph.node_copy(node)
        copies[node].meta = dict(node.meta)
    entering: dict[fx.Node, fx.Node] = {}
    cuts = tuple(outputs.index(node) for node in earlier)
    for node, place in zip(earlier, cuts, strict=True):
        entering[node] = graph.placeholder(f"result_{place}")
        # A value stands for one node.
        with fake_mode_of(graph_module), torch.no_grad():
            entering[node].meta = {"val": node.meta["val"].detach(), "mode": Mode()}
        set_descriptor(entering[node], EarlierResult(described[place]))  # type: ignore[arg-type]
    returned: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            results = [returned.get(n, copies.get(n)) for n in outputs]
            graph.output(tuple(results)).meta = dict(node.meta)
            continue
        copy = graph.node_copy(node, copies.__getitem__)
        copy.meta = dict(node.meta)
        returned[node] = copy
        copies[node] = entering.get(node, copy)
    cut = module_of(graph_module, graph)
    if "entry_mode" in graph_module.meta:
        cut.meta["entry_mode"] = graph_module.meta["entry_mode"]
    return cut, cuts


def joined(graph_module: fx.GraphModule, cuts: Sequence[int]) -> fx.GraphModule:
    """The graph in one piece again: without the inputs that stand for its results."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    outputs = outputs_of(graph_module.graph)
    inputs = inputs_of(graph_module)
    count = len(inputs) - len(cuts)
    standing = {node: outputs[place] for node, place in zip(inputs[count:], cuts, strict=True)}
    for node in graph_module.graph.nodes:
        if node not in standing:
            copy = graph.node_copy(node, lambda n: copies[standing.get(n, n)])
            copy.meta = dict(node.meta)
            copies[node] = copy
    whole = module_of(graph_module, graph)
    remove_dead_code(graph)
    if "entry_mode" in graph_module.meta:
        whole.meta["entry_mode"] = graph_module.meta["entry_mode"]
    return whole


def stages_of(
    graph_module: fx.GraphModule, wrt: Sequence[int], cuts: Sequence[int]
) -> tuple[tuple[int, ...], tuple[frozenset[int], ...]]:
    """The stage of each output of a cut graph, and which inputs of `wrt` each stage depends on.

    An output is of the stage after the latest result that it depends on.
    """
    inputs, outputs = inputs_of(graph_module), outputs_of(graph_module.graph)
    count = len(inputs) - len(cuts)
    standing = {node: outputs[place] for node, place in zip(inputs[count:], cuts, strict=True)}
    active = active_nodes(graph_module, [inputs[place] for place in wrt])
    stage: dict[fx.Node, int] = {}
    uses: dict[fx.Node, set[int]] = {}
    for place, node in enumerate(inputs):
        uses[node] = {place} if node in active else set()
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        arguments = node.all_input_nodes
        # Also what has no derivative is there no sooner than what it is computed from.
        stage[node] = max((_after(stage, standing, each) for each in arguments), default=0)
        uses[node] = set()
        if node in active:
            uses[node] = uses[node].union(*(uses[each] for each in arguments if each in active))
    levels = tuple(stage.get(node, 0) if isinstance(node, fx.Node) else 0 for node in outputs)
    found: list[set[int]] = [set() for _ in range(max(levels, default=0) + 1)]
    for node, level in zip(outputs, levels, strict=True):
        if node in active:
            found[level] |= uses[node]
    return levels, tuple(map(frozenset, found))


def _after(stage: Mapping[fx.Node, int], standing: Mapping[fx.Node, fx.Node], node: fx.Node) -> int:
    """The earliest stage of what is computed from `node`."""
    return stage[standing[node]] + 1 if node in standing else stage.get(node, 0)


def _earlier_results(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[fx.Node]:
    """The computed results that other results depend on by differentiable steps, in their order."""
    inputs = inputs_of(graph_module)
    active = active_nodes(graph_module, [inputs[place] for place in wrt])
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
