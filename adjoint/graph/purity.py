"""Which nodes of a graph may go when nothing uses their result."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from adjoint.graph.operations import in_order
from adjoint.graph.subgraphs import subgraph_of
from adjoint.torch_private.operators import OpOverload

_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


def is_collective(node: fx.Node) -> bool:
    """Others read its arguments after it has returned: it talks to other processes."""
    return isinstance(node.target, OpOverload) and node.target.namespace in _COLLECTIVES


def is_never_dead(node: fx.Node) -> bool:
    """The node may not go, whether or not something uses its result."""
    return node.op in ("placeholder", "output") or is_impure(node)


def is_impure(node: fx.Node) -> bool:
    """Running the node does more than make its result, so it runs once and never again.

    An op that draws random numbers advances the generator, and what follows depends on that.
    """
    if node.op != "call_function":
        return False
    if node.target is in_order or any(map(is_impure, _in_bodies(node))):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return not node.target._schema.returns or _draws(node.target)


def is_impure_graph(graph: fx.Graph) -> bool:
    """To run the graph again would do more than to compute the same values."""
    return any(is_impure(node) or is_collective(node) for node in graph.nodes)


def _draws(op: OpOverload) -> bool:
    """It takes numbers from a generator, and is not told which the forward op took."""
    told = any(argument.name == "philox_seed" for argument in op._schema.arguments)
    return torch.Tag.nondeterministic_seeded in op.tags and not told


def _in_bodies(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of the graphs that `node` has as operands."""
    owner = node.graph.owning_module
    for operand in node.all_input_nodes:
        body = None if owner is None else subgraph_of(owner, operand)
        if body is not None:
            yield from body.graph.nodes


def remove_dead_code(graph: fx.Graph) -> None:
    """Remove nodes that nothing needs."""
    for node in reversed(graph.nodes):
        if not node.users and not is_never_dead(node):
            graph.erase_node(node)
