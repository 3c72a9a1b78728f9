"""Casts that cancel or merge, and copies that change nothing.

    clone(x)                        = x                    if it has the strides of x
    cast(x, dtype of x)             = x
    cast(cast(x, wider), dtype)     = cast(x, dtype)       and x itself, if that is its dtype

where `wider` holds every number of the dtype of x, so the inner cast loses nothing.  Autocast makes
such pairs: a result in bfloat16 is cast to float32 for a normalization, and back for the next
product.  Fusing attention leaves copies behind, of transposes that it no longer needs.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import computes_tensor, tensor_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.refreshing import same_values
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
x = Wildcard("x")
CAST = aten._to_copy.default

# For each dtype, those that hold all of its numbers.
_F16, _BF16, _F32, _F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
WIDER: dict[torch.dtype, frozenset[torch.dtype]] = {
    _F16: frozenset({_F32, _F64}),
    _BF16: frozenset({_F32, _F64}),
    _F32: frozenset({_F64}),
    torch.int32: frozenset({torch.int64, _F64}),
    torch.bool: frozenset({torch.int32, torch.int64, _F16, _BF16, _F32, _F64}),
}


def is_cast(node: object) -> bool:
    """Whether the node changes the dtype of a tensor, and neither its device nor its layout."""
    if not isinstance(node, fx.Node) or node.target is not CAST:
        return False
    source = node.args[0]
    if not isinstance(source, fx.Node) or not computes_tensor(source):
        return False
    before, after = tensor_of(source), tensor_of(node)
    return before.device == after.device and before.layout == after.layout


@rewrites(call(CAST, x, ..., where=is_cast))
def drop_cast(x: fx.Node, match: Match) -> Replacement | None:
    """cast(x, dtype of x) = x"""
    return x if tensor_of(x).dtype == tensor_of(match.root).dtype else None


@rewrites(call(aten.clone.default, x, ...))
def drop_copy(x: fx.Node, match: Match) -> Replacement | None:
    """clone(x) = x, if it has the strides of x"""
    return x if same_values(tensor_of(x), tensor_of(match.root)) else None


@rewrites(call(CAST, call(CAST, x, ..., shared=True, where=is_cast), ..., where=is_cast))
def merge_casts(x: fx.Node, match: Match) -> Replacement | None:
    """cast(cast(x, wider), dtype) = cast(x, dtype)"""
    source, inner = tensor_of(x).dtype, tensor_of(match.root.args[0]).dtype  # type: ignore[arg-type]
    result = tensor_of(match.root).dtype
    if inner not in WIDER.get(source, ()):
        return None
    return x if result == source else call(CAST, x, dtype=result)


RULES = (drop_copy, drop_cast, merge_casts)


def cancel_casts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Remove copies, casts to the same dtype, and casts to a wider dtype on the way to another."""
    return rewrite(graph_module, RULES, "cancel-casts")
