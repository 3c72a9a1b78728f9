"""Operators that are called as they are: what they need, what they share, and where they write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from adjoint.graph.purity import is_collective
from adjoint.loops.plan import ExpectedTensor
from adjoint.lower.sizes import sizes
from adjoint.lower.views import PARTS, view_of
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import is_unbacked_int

aten = torch.ops.aten


def needs_of_call(node: fx.Node) -> set[fx.Node]:
    """What there must be before it; of views among its arguments also their sizes."""
    return needs_of_tensors(node.all_input_nodes)


def needs_of_tensors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """What there must be before they are; views are made where they are needed."""
    found: set[fx.Node] = set()
    work = list(nodes)
    while work:
        each = work.pop()
        if view_of(each) is None and each.target not in PARTS:
            found.add(each)
        else:
            work += each.all_input_nodes
    return found


def may_alias(node: fx.Node) -> bool:
    """Its result may be memory of an argument."""
    if node.target in WRITERS or not isinstance(node.target, OpOverload):
        return node.target not in WRITERS
    if node.target in _COPIES or is_collective(node):
        return True
    return _is_alias(node.target)


def is_returned(node: fx.Node) -> bool:
    """The caller gets it, or something that may share its memory."""
    return any(
        user.op == "output" or ((user.target in PARTS or may_alias(user)) and is_returned(user))
        for user in node.users
    )


def _is_alias(target: Any) -> bool:
    """Its result always shares memory with an argument; that of `flip` never does."""
    return isinstance(target, OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns
    )


def is_view(node: fx.Node) -> bool:
    """Its result is memory of an argument, and nothing is copied."""
    target = node.target
    return isinstance(target, OpOverload) and bool(target.is_view) and target not in _COPIES


def expected_of(node: fx.Node) -> tuple[ExpectedTensor | None, ...]:
    """What the call of an operator is expected to return.

    What views return follows from what they are of.
    """
    if not isinstance(node.target, OpOverload) or is_view(node) or node.target in _COPIES:
        return ()
    return tuple(map(_promise, trees.leaves(node.meta.get("val"))))


def _promise(value: Any) -> ExpectedTensor | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if any(map(is_unbacked_int, (*value.shape, *value.stride()))):
        return None
    return ExpectedTensor(sizes(value.shape), sizes(value.stride()), value.dtype, value.device)


# Operators of which the result depends on how arguments lie in memory.
READS_LAYOUT = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
        aten._linalg_det.default,
        aten._linalg_slogdet.default,
    }
)


# Operators that write their result where they are told.
WRITERS: dict[Any, Any] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
}


# Said to copy, but called as something that need not.
_COPIES = frozenset({aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default})
