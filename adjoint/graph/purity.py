"""Which nodes are impure, and so neither dead code, nor recomputed, nor shared by CSE."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import fx

from adjoint.graph.operations import in_order, on_copies
from adjoint.graph.subgraphs import subgraph_of
from adjoint.torch_private.operators import OpOverload

_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


def is_collective(node: fx.Node) -> bool:
    """Whether other processes take part: its arguments may be read after it has returned."""
    return isinstance(node.target, OpOverload) and node.target.namespace in _COLLECTIVES


def is_never_dead(node: fx.Node) -> bool:
    """Whether the node stays even if nothing uses its result."""
    return node.op in ("placeholder", "output") or is_impure(node)


def is_impure(node: fx.Node) -> bool:
    """Whether the node has effects besides its result, so that it must run exactly once.

    Drawing random numbers is an effect: it advances the generator.
    """
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return _returns_nothing(node.target) or draws(node)
    if node.target is in_order or draws(node):
        return True
    return any(map(is_impure, _in_bodies(node)))


def draws(node: fx.Node) -> bool:
    """Whether the node draws random numbers, apart from the bodies of a higher-order operator."""
    if node.target is on_copies:
        op = node.args[0]
        return isinstance(op, OpOverload) and _draws_random_numbers(op)
    if not isinstance(node.target, OpOverload):
        return False
    return _draws_random_numbers(node.target) and not _has_no_dropout(node)


def always_draws(op: OpOverload) -> bool:
    """Whether every call of the op draws random numbers; attention does only with dropout."""
    has_dropout = any(argument.name == "dropout_p" for argument in op._schema.arguments)
    return _draws_random_numbers(op) and not has_dropout


def is_impure_graph(graph: fx.Graph) -> bool:
    """Whether running the graph again would do more than compute the same values."""
    return any(is_impure(node) or is_collective(node) for node in graph.nodes)


# Kinds of operators that are remembered: passes ask about each node.
MAX_OPERATORS = 4096


@functools.lru_cache(maxsize=MAX_OPERATORS)
def _returns_nothing(op: OpOverload) -> bool:
    return not op._schema.returns


@functools.lru_cache(maxsize=MAX_OPERATORS)
def _draws_random_numbers(op: OpOverload) -> bool:
    """Whether the op draws from a generator.  A backward op that is given `philox_seed` repeats the
    draws of the forward op instead."""
    is_seeded = any(argument.name == "philox_seed" for argument in op._schema.arguments)
    return torch.Tag.nondeterministic_seeded in op.tags and not is_seeded


def _has_no_dropout(node: fx.Node) -> bool:
    """Whether the node is attention with dropout 0, which draws no random numbers."""
    assert isinstance(node.target, OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = place < len(node.args)
            dropout = node.args[place] if given else node.kwargs.get("dropout_p", 0.0)
            return bool(dropout == 0.0)
    return False


def _in_bodies(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of the bodies of a higher-order operator."""
    owner = node.graph.owning_module
    for operand in node.all_input_nodes:
        body = None if owner is None else subgraph_of(owner, operand)
        if body is not None:
            yield from body.graph.nodes


def remove_dead_code(graph: fx.Graph) -> None:
    """Remove pure nodes that nothing uses."""
    for node in reversed(graph.nodes):
        if not node.users and not is_never_dead(node):
            graph.erase_node(node)
