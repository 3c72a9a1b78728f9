"""Opening softmax: written as simpler operators, so that only row maxima and row sums are saved.

The backward graph recomputes a softmax of half-precision numbers instead of loading a saved one.
The row maxima and row sums would each need another pass over the row; they are saved, because they
are only two numbers for each row.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Argument

from adjoint.graph.copying import GraphCopy
from adjoint.graph.metadata import value_at, value_of
from adjoint.graph.origins import for_part_of, replace
from adjoint.graph.purity import remove_dead_code
from adjoint.partition.recomputing import is_cheap
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

# Metadata key of the last node of an opened softmax: the axis of the softmax.
_AXIS = "softmax_axis"

# Metadata of that node which the closed operator must not have.
_OPENED = frozenset({_AXIS, "part_of"})


def open_softmax(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Open each log-softmax that is worth recomputing: x - max - log(sum(exp(x - max)))."""
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        if is_cheap(node) and value_of(node).dim() and not node.args[2]:
            with graph.inserting_before(node):
                opened = _opened(node)
            replace(node, opened)
    return graph_module


def close_softmax(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which each opened log-softmax is one operator again; the graph itself if none is.

    The copy is differentiated by the rule for log-softmax, so its derivative needs the same values
    as before the softmax was opened.
    """
    if not any(map(_is_opened, graph_module.graph.nodes)):
        return graph_module
    copying = GraphCopy(graph_module)
    for node in graph_module.graph.nodes:
        if _is_opened(node):
            x = node.args[0].args[0]
            args = (copying.copies[x], node.meta[_AXIS], False)
            copy = copying.graph.call_function(aten._log_softmax.default, args)
            copy.meta = {key: each for key, each in node.meta.items() if key not in _OPENED}
            copying.copies[node] = copy
        else:
            copying.add(node)
    closed = copying.finish()
    remove_dead_code(closed.graph)
    return closed


def _is_opened(node: fx.Node) -> bool:
    """Whether this is the last node of an opened softmax whose argument is still in the graph."""
    if _AXIS not in node.meta or node.op != "call_function":
        return False
    shifted = node.args[0]
    return isinstance(shifted, fx.Node) and shifted.op == "call_function"


def _opened(node: fx.Node) -> fx.Node:
    def call(op: OpOverload, *args: Argument) -> fx.Node:
        made = node.graph.call_function(op, args)
        values = map(value_at, args)
        made.meta = for_part_of(node, op(*values))
        return made

    x, dim, _ = node.args
    # The result does not depend on the number subtracted, so no gradient flows through it.
    highest = call(aten.detach.default, call(aten.amax.default, x, [dim], True))
    shifted = call(aten.sub.Tensor, x, highest)
    total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
    whole = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    whole.meta[_AXIS] = dim
    return whole
