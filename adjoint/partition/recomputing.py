"""Which operators are recomputed rather than saved: those that cost little, or nothing.

Within one program, `lower/recomputation.py` recomputes values so that the peak of memory falls.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from adjoint.graph.metadata import computes_tensor, value_of, value_or_none
from adjoint.graph.purity import is_impure
from adjoint.host_memory import from_host
from adjoint.rules.costs import MAX_SHORT_DIMENSION, is_quick
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import SYMBOLIC

aten = torch.ops.aten


def is_free(node: fx.Node) -> bool:
    """Whether recomputing the node costs nothing: a view, a constant, arithmetic on sizes."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload):
        # An item of a tuple is itself saved.  Sizes are recomputed from the sizes they depend on:
        # derivatives of the backward graph may need other expressions of these.
        return isinstance(value_or_none(node), SYMBOLIC) and node.target is not operator.getitem
    if node.target in _CONSTANTS and not node.all_input_nodes:
        return True
    return bool(node.target.is_view) and not isinstance(value_or_none(node), (tuple, list))


def is_cheap(node: fx.Node) -> bool:
    """Whether recomputing is cheaper than saving: few instructions for each element, or a gather.

    Also a softmax of a tensor in a narrower dtype: reading its argument once more is less traffic
    than writing and reading the result.
    """
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    if not computes_tensor(node) or is_impure(node):
        return False
    # What waits in host memory may be copied from there more than once.
    if node.target in _BY_INDEX or node.target is from_host:
        return True
    if _is_cast(node) or _is_short_product(node):
        return True
    if node.target in _SOFTMAX:
        return bool(
            _before_views_and_casts(node.all_input_nodes[0]).itemsize < value_of(node).itemsize
        )
    tags = node.target.tags
    if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
        return False
    return is_quick(node)


def _is_short_product(node: fx.Node) -> bool:
    """Whether this is a matrix product with a short inner dimension, as of points in space."""
    if node.target is not aten.mm.default:
        return False
    inner = value_of(node.args[1]).shape[0]  # type: ignore[arg-type]
    is_exact = value_of(node).dtype in (torch.float32, torch.float64)
    return is_exact and isinstance(inner, int) and inner <= MAX_SHORT_DIMENSION


def _is_cast(node: fx.Node) -> bool:
    """Whether this is a cast to another dtype on the same device."""
    # The operator also makes a tensor of a symbolic size, which is not a node.
    if node.target is not aten._to_copy.default or not isinstance(node.args[0], fx.Node):
        return False
    source, result = value_of(node.args[0]), value_of(node)
    return bool(source.device == result.device and source.layout == result.layout)


def _before_views_and_casts(node: fx.Node) -> torch.Tensor:
    """The value that `node` is computed from by views and casts alone."""
    while (is_free(node) and node.all_input_nodes) or _is_cast(node):
        node = node.all_input_nodes[0]
    value: torch.Tensor = value_of(node)
    return value


_BY_INDEX = frozenset({aten.index.Tensor, aten.index_select.default, aten.embedding.default})


_SOFTMAX = frozenset({aten._log_softmax.default, aten._softmax.default})


_CONSTANTS = frozenset(
    {
        aten.full.default,
        aten.zeros.default,
        aten.ones.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.scalar_tensor.default,
        aten.eye.default,
    }
)
