"""Narrowing output masks: fused backward operators compute only the gradients that are used."""

from __future__ import annotations

import operator

from torch import fx

from adjoint.graph.copying import copied
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import arguments_of, set_value
from adjoint.rewrite.refreshing import computing_fakes_of, fake_value
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload


def narrow_masks(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph with each `output_mask` narrowed to results that are used; a copy if changed."""
    if not any(_narrowed(node) for node in graph_module.graph.nodes):
        return graph_module
    made = copied(graph_module)
    with computing_fakes_of(graph_module):
        for node in made.graph.nodes:
            narrowed = _narrowed(node)
            if narrowed is not None:
                place, mask = narrowed
                node.args = (*node.args[:place], mask, *node.args[place + 1 :])
                set_value(node, trees.map_leaves(detached, fake_value(node)))
    return made


def _narrowed(node: fx.Node) -> tuple[int, list[bool]] | None:
    """The position of the node's `output_mask` and its new value; None if it is not narrowed."""
    place = _mask_place(node)
    if place is None:
        return None
    taken = {user.args[1] for user in node.users if user.target is operator.getitem}
    if len(taken) < len(node.users):
        return None  # Some user takes the whole tuple.
    mask = arguments_of(node)[place]
    narrowed = [bool(asked) and index in taken for index, asked in enumerate(mask)]
    return None if narrowed == list(mask) else (place, narrowed)


def _mask_place(node: fx.Node) -> int | None:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "output_mask" and place < len(node.args):
            return place if isinstance(node.args[place], (list, tuple)) else None
    return None
