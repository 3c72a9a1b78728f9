"""Graphs whose derivative is left to eager autograd."""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import has_hooks, value_or_none
from adjoint.graph.operations import apply_function, has_backward_per_pattern, in_order, on_copies
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.torch_private import trees
from adjoint.torch_private.fake import FakeTensor
from adjoint.torch_private.modes import is_traceable_wrapper_subclass


def is_left_to_eager(graph_module: fx.GraphModule) -> bool:
    """Eager autograd differentiates the graph, op by op, while it runs.

    That is for what has no rule: effects, hooks on saved tensors, tensor subclasses, sparse
    gradients; for functions marked `once_differentiable`, which eager refuses only when the second
    derivative is asked for; and for functions that are told which cotangents are missing, which
    eager calls even when all are.
    """
    return any(
        node.target in (on_copies, in_order)
        or (
            node.target is apply_function and (bool(node.args[3]) or has_backward_per_pattern(node))
        )
        or has_hooks(node)
        or _has_sparse_gradient(node)
        or any(_is_subclass(leaf) for leaf in trees.leaves(value_or_none(node)))
        for node in graph_module.graph.nodes
    ) or any(map(is_left_to_eager, subgraphs_of(graph_module).values()))


def _has_sparse_gradient(node: fx.Node) -> bool:
    """An embedding with `sparse=True`, whose gradient holds only the rows that were read."""
    place = _SPARSE.get(node.target)
    return place is not None and len(node.args) > place and bool(node.args[place])


_SPARSE: dict[object, int] = {
    torch.ops.aten.embedding.default: 4,
    torch.ops.aten._embedding_bag.default: 5,
}


def _is_subclass(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor)
        and is_traceable_wrapper_subclass(value)
    )
