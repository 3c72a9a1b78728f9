"""Operators that torch cannot differentiate again, as compositions of operators that it can.

Under `torch.func` and forward mode a graph runs op by op, so each of its operators must be one that
they can differentiate.
"""

from __future__ import annotations

from torch import fx

from adjoint.graph.copying import copied
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.rules.registry import COMPOSITIONS


def compose_for_torch(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph, and of the graphs inside it, with compositions in place of such ops."""
    made = copied(graph_module)
    for node in made.graph.nodes:
        node.target = COMPOSITIONS.get(node.target, node.target)
    for name, body in subgraphs_of(graph_module).items():
        setattr(made, name, compose_for_torch(body))
    return made
