"""Opening dropout in checkpoints, so that only its mask is saved: a byte for each element.

What follows a dropout is recomputed from the dropout's result.  The operator cannot run again,
because it would draw other numbers.  Its result is therefore written as a product with its mask,
and a mask of floating-point numbers is saved as one of booleans.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace as changed

import torch
from torch import fx
from torch.fx.node import Argument

from adjoint.graph.metadata import (
    region_of,
    set_region,
    tensor_of,
    value_at,
    value_of,
)
from adjoint.graph.origins import for_part_of, replace

aten = torch.ops.aten

_ZEROS_AND_ONES = (aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli.Tensor)


def open_dropout(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Write the result of each dropout in a checkpoint as x * mask / (1 - p)."""
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        if region_of(node) is not None:
            _open(node, *node.args, **node.kwargs)
    for op in _ZEROS_AND_ONES:
        for node in graph.find_nodes(op="call_function", target=op):
            if region_of(node) is not None and tensor_of(node).dtype.itemsize > 1:
                _narrow(node)
    return graph_module


def _open(node: fx.Node, x: fx.Node, p: float, train: bool | None = None) -> None:
    items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if train is False or 0 not in items or not isinstance(p, (int, float)):
        return
    result = items[0]
    mask = items.get(1)
    if mask is None:
        mask = _after(node, operator.getitem, (node, 1), value_of(node)[1])
    else:
        node.append(mask)
    kept = _after(mask, aten.mul.Tensor, (x, mask))
    scaled = _after(kept, aten.mul.Tensor, (kept, 1 / (1 - p) if p < 1 else 0.0))
    replace(result, scaled)


def _narrow(draw: fx.Node) -> None:
    """Let the users of a random mask take it from booleans, which are saved."""
    users = list(draw.users)
    mask = _after(draw, aten._to_copy.default, (draw,), dtype=torch.bool)
    wide = _after(mask, aten._to_copy.default, (mask,), dtype=tensor_of(draw).dtype)
    region = region_of(draw)
    assert region is not None
    set_region(mask, changed(region, policy="MUST_SAVE"))
    for user in users:
        user.replace_input_with(draw, wide)


def _after(
    node: fx.Node,
    op: Callable[..., object],
    args: tuple[Argument, ...],
    value: object = None,
    **named: Argument,
) -> fx.Node:
    """A call of `op` after `node`, and a part of it."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(op, args, named)
    if value is None:
        values = map(value_at, args)
        value = op(*values, **named)
    made.meta = for_part_of(node, value)
    return made
