"""Which calls a device can do again by itself, from a recording of what it was told to do.

A recording has what was launched and nothing of what the processor did beside it: values that it
waited for, numbers that it drew, memory of its own.  A call of which that is known is never
recorded; one that turns out to wait is refused by the driver.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import fx

from adjoint.graph.operations import exponential_scan, random_bits, with_data
from adjoint.graph.purity import is_impure
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

# The device stops by itself.
_ASSERTIONS = frozenset({aten._assert_async.default, aten._assert_async.msg})

# Their indices may be masks, whose elements have to be counted.
_INDEXING = frozenset(
    {
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.index_put.default,
        aten._unsafe_index_put.default,
    }
)

_OURS = frozenset({with_data, exponential_scan, random_bits})


def why_not_capturable(node: fx.Node, device: torch.device) -> str:
    """Why `device` cannot repeat a call without the processor; empty if it can."""
    target: Any = node.target
    nodes = (node, *node.all_input_nodes)
    leaves = [leaf for each in nodes for leaf in trees.leaves(each.meta.get("val"))]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if tensor.device != device:
            return f"{target} has a tensor on {tensor.device}"
        if tensor.layout is not torch.strided:
            return f"{target} has a sparse tensor"
    if isinstance(target, types.BuiltinFunctionType) or node.op == "get_attr":
        # An element of a tuple, or arithmetic on sizes.
        return ""
    if not isinstance(target, OpOverload):
        return f"{target} runs Python"
    if target.namespace not in ("aten", "prims") and target not in _OURS:
        return f"{target} may do anything"
    if is_impure(node) and target not in _ASSERTIONS and not _is_told_to_drop_nothing(node):
        return f"{target} draws random numbers, or has effects"
    if target in _INDEXING:
        masks = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _indices(node))
        return f"{target} counts the elements of a mask" if masks else ""
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(target.tags):
        return f"{target} waits for values"
    return ""


def _indices(node: fx.Node) -> list[torch.Tensor]:
    given = [n for n in trees.leaves(node.args[1]) if isinstance(n, fx.Node)]
    return [n.meta["val"] for n in given]


def _is_told_to_drop_nothing(node: fx.Node) -> bool:
    """Attention draws numbers only for dropout."""
    assert isinstance(node.target, OpOverload)
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            told = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(told == 0.0)
    return False
