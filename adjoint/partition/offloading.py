"""Saved values that wait in host memory.

The forward graph copies such a value to the host as soon as it is computed, and returns the copy;
the backward graph copies it back right before what first reads it.
"""

from __future__ import annotations

import itertools

import torch
from torch import fx

from adjoint.graph.metadata import operand_of, tensor_of
from adjoint.graph.origins import for_part_of
from adjoint.host_memory import from_host, to_host


def to_host_memory(node: fx.Node) -> fx.Node:
    """The copy of a value in host memory, added to its graph."""
    for user in node.users:
        if user.target is to_host:
            return user
    with node.graph.inserting_after(node):
        copy = node.graph.call_function(to_host, (node,))
    with torch.no_grad():
        copy.meta = _meta(node, to_host(tensor_of(node)))
    return copy


def back_from_host_memory(copy: fx.Node) -> None:
    """Let the other users of a value read what is copied back from host memory."""
    node = operand_of(copy)
    # No user may come before what it will read.
    node.append(copy)
    device = tensor_of(node).device
    with node.graph.inserting_after(copy):
        back = node.graph.call_function(from_host, (copy, device, []))
    with torch.no_grad():
        back.meta = _meta(node, from_host(tensor_of(copy), device, []))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not copy)


def fetch_ahead(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Each copy from host memory begins to copy what will be copied next."""
    copies = graph_module.graph.find_nodes(op="call_function", target=from_host)
    for copy, following in itertools.pairwise(copies):
        host, device, _ = copy.args
        copy.args = (host, device, [operand_of(following)])
    return graph_module


def _meta(node: fx.Node, value: object) -> dict[str, object]:
    """Metadata for a copy, which is not in the checkpoint that the value itself is in."""
    meta = for_part_of(node, value)
    return {key: each for key, each in meta.items() if key not in ("region", "descriptor")}
