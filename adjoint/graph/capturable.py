"""Which calls can be captured in a CUDA graph.

A CUDA graph holds launches and nothing that the host did between them: synchronization, host
memory.  Calls known to need the host are never captured; one that turns out to synchronize makes
the driver reject the capture.  Random numbers of the device's default generator can be drawn: torch
advances it at each replay (`runtime/gpu/capture.py`).
"""

from __future__ import annotations

import types
from operator import getitem

import torch
from torch import fx

from adjoint.graph.losses import linear_cross_entropy
from adjoint.graph.metadata import has_value, tensor_of, value_of
from adjoint.graph.operations import exponential_scan, random_bits, with_data
from adjoint.graph.purity import draws, is_impure
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload, depends_on_data

aten = torch.ops.aten

# Checked by the device, without the host.
_ASSERTIONS = frozenset({aten._assert_async.default, aten._assert_async.msg})

# Their indices may be masks, and counting the elements of a mask synchronizes.
_INDEXING = frozenset(
    {
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.index_put.default,
        aten._unsafe_index_put.default,
    }
)

_OWN_OPERATORS = frozenset({with_data, exponential_scan, random_bits, linear_cross_entropy})


def why_not_capturable(node: fx.Node, device: torch.device) -> str:
    """Why a call cannot be captured in a CUDA graph on `device`; empty if it can."""
    target: object = node.target
    values = _used_results(node)
    if target is not getitem:
        values += [value_of(each) for each in node.all_input_nodes if has_value(each)]
    for tensor in (leaf for leaf in trees.leaves(values) if isinstance(leaf, torch.Tensor)):
        if tensor.device != device:
            return f"{target} has a tensor on {tensor.device}"
        if tensor.layout is not torch.strided:
            return f"{target} has a sparse tensor"
    if isinstance(target, types.BuiltinFunctionType) or node.op == "get_attr":
        # An element of a tuple, or arithmetic on sizes.
        return ""
    if not isinstance(target, OpOverload):
        return f"{target} runs Python"
    if target.namespace not in ("aten", "prims") and target not in _OWN_OPERATORS:
        return f"{target} may do anything"
    if draws(node):
        own = node.kwargs.get("generator") is not None
        return f"{target} draws random numbers from a generator of its own" if own else ""
    if is_impure(node) and target not in _ASSERTIONS:
        return f"{target} has effects"
    if target in _INDEXING:
        masks = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _indices(node))
        return f"{target} counts the elements of a mask" if masks else ""
    if depends_on_data(target):
        return f"{target} waits for values"
    return ""


def _used_results(node: fx.Node) -> list[object]:
    """The results of a call that something uses.

    Fused attention also returns the state of the generator, in host memory, which nothing reads
    without dropout.
    """
    if not has_value(node):
        return []
    value = value_of(node)
    users = list(node.users)
    if not isinstance(value, (list, tuple)) or any(u.target is not getitem for u in users):
        return [value]
    return [value_of(user) for user in users]


def _indices(node: fx.Node) -> list[torch.Tensor]:
    return [tensor_of(leaf) for leaf in trees.leaves(node.args[1]) if isinstance(leaf, fx.Node)]
