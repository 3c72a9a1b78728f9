"""Which nodes of a graph may go when nothing uses their result."""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.operations import in_order
from adjoint.torch_private.operators import OpOverload

_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


def must_stay(node: fx.Node) -> bool:
    """Running the node does more than make its result.

    An op that draws random numbers advances the generator, and what follows depends on that.
    """
    if node.op in ("placeholder", "output"):
        return True
    if node.target is in_order:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return not node.target._schema.returns or torch.Tag.nondeterministic_seeded in node.target.tags


def remove_dead_code(graph: fx.Graph) -> None:
    """Remove nodes that nothing needs."""
    for node in reversed(graph.nodes):
        if not node.users and not must_stay(node):
            graph.erase_node(node)
