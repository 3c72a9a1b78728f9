"""A softmax in parts, so that its rows' maxima and sums can be saved without it.

A softmax of half-precision numbers is computed again in the backward graph rather than saved.  Its
maxima and sums, two numbers for each row, need not be: they go through the row once each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from adjoint.graph.copying import GraphCopy
from adjoint.graph.purity import remove_dead_code
from adjoint.partition.split import is_cheap

aten = torch.ops.aten

# In the metadata of what stands for an opened softmax: along which axis it is one.
_AXIS = "softmax_axis"


def open_softmax(graph: fx.Graph) -> tuple[dict[fx.Node, fx.Node], set[fx.Node]]:
    """Writes logarithms of a softmax as what they are made of.

    Returns what stands for each of them now, and all nodes that were made for them.
    """
    opened: dict[fx.Node, fx.Node] = {}
    parts: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        if is_cheap(node) and node.meta["val"].dim() and not node.args[2]:
            with graph.inserting_before(node):
                opened[node] = _parts_of(node, parts)
            node.replace_all_uses_with(opened[node])
            graph.erase_node(node)
    return opened, parts


def close_softmax(
    graph_module: fx.GraphModule,
) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """The graph with each opened softmax as the operator it was, and which node each was made of.

    A derivative of the graph is then that of the operator, and needs no more than it did before.
    """
    copying = GraphCopy(graph_module)
    for node in graph_module.graph.nodes:
        if _AXIS in node.meta:
            x = node.args[0].args[0]
            args = (copying.copies[x], node.meta[_AXIS], False)
            copy = copying.graph.call_function(aten._log_softmax.default, args)
            copying.copies[node] = copy
        else:
            copy = copying.add(node)
        copy.meta = {key: value for key, value in node.meta.items() if key != _AXIS}
    closed = copying.finish()
    remove_dead_code(closed.graph)
    return closed, {copy: node for node, copy in copying.copies.items()}


def _parts_of(node: fx.Node, parts: set[fx.Node]) -> fx.Node:
    def call(op: Any, *args: Any) -> fx.Node:
        made = node.graph.call_function(op, args)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta = {**node.meta, "val": op(*values)}
        parts.add(made)
        return made

    x, dim, _ = node.args
    # The result does not depend on what is subtracted, so that nothing flows back through it.
    highest = call(aten.detach.default, call(aten.amax.default, x, [dim], True))
    shifted = call(aten.sub.Tensor, x, highest)
    total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
    whole = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    whole.meta[_AXIS] = dim
    return whole
