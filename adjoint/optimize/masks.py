"""Results that nobody uses are not asked for.

A fused backward gives the gradients that its `output_mask` says; what no node takes is left out.
"""

from __future__ import annotations

import operator

from torch import fx

from adjoint.torch_private.operators import OpOverload


def narrow_masks(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Leave out of each `output_mask` what nothing takes."""
    for node in graph_module.graph.nodes:
        place = _mask_place(node)
        if place is None:
            continue
        taken = {user.args[1] for user in node.users if user.target is operator.getitem}
        if len(taken) < len(node.users):
            continue  # Someone has all of them.
        mask = node.args[place]
        narrowed = [bool(asked) and index in taken for index, asked in enumerate(mask)]
        if narrowed != list(mask):
            node.args = (*node.args[:place], narrowed, *node.args[place + 1 :])
    return graph_module


def _mask_place(node: fx.Node) -> int | None:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "output_mask" and place < len(node.args):
            return place if isinstance(node.args[place], (list, tuple)) else None
    return None
