"""Library calls: dependencies, aliasing between results and arguments, and `out` variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from adjoint.graph.convolutions import convolution_into
from adjoint.graph.metadata import value_or_none
from adjoint.graph.partial_writes import written
from adjoint.graph.purity import is_collective
from adjoint.graph.reachability import reachable
from adjoint.loops.plan import ExpectedTensor
from adjoint.lower.sizes import sizes
from adjoint.lower.views import PARTS, view_of
from adjoint.target import Target
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload, is_composite
from adjoint.torch_private.symbols import is_unbacked_int

aten = torch.ops.aten


def needs_of_call(node: fx.Node) -> set[fx.Node]:
    """The tensors a call depends on, those behind views and the sizes of views included."""
    return needs_of_tensors(node.all_input_nodes)


def needs_of_tensors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes themselves, or what they are views of."""

    def is_view_or_part(node: fx.Node) -> bool:
        return view_of(node) is not None or node.target in PARTS

    found = reachable(nodes, lambda node: node.all_input_nodes if is_view_or_part(node) else ())
    return {node for node in found if not is_view_or_part(node)}


def may_alias(node: fx.Node) -> bool:
    """Whether the result may share memory with an argument."""
    if node.target in WRITERS or node.target is written:
        return False
    if not isinstance(node.target, OpOverload):
        return True
    if node.target is aten._unsafe_view.default or is_collective(node):
        return True
    return _is_alias(node.target)


def is_returned(node: fx.Node) -> bool:
    """Whether the program returns the value, or one that may share its memory."""
    return any(
        user.op == "output" or ((user.target in PARTS or may_alias(user)) and is_returned(user))
        for user in node.users
    )


def _is_alias(target: object) -> bool:
    """Whether the schema declares that the result aliases an argument."""
    return isinstance(target, OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns
    )


def is_view(node: fx.Node) -> bool:
    """Whether the result shares memory with an argument, and the operator never copies."""
    target = node.target
    if not isinstance(target, OpOverload) or _copies_if_needed(target):
        return False
    return bool(target.is_view)


def _copies_if_needed(target: OpOverload) -> bool:
    """Whether the result is a view where strides and dtype allow it, and a copy elsewhere.

    So may be that of any operator which torch defines by others, such as `reshape` and `to`.
    """
    return target is aten._unsafe_view.default or (_is_alias(target) and is_composite(target))


def expected_of(node: fx.Node) -> tuple[ExpectedTensor | None, ...]:
    """The tensors that a library call is expected to return; those of views are not checked."""
    target = node.target
    if not isinstance(target, OpOverload) or is_view(node) or _copies_if_needed(target):
        return ()
    return tuple(map(_expected, trees.leaves(value_or_none(node))))


def _expected(value: object) -> ExpectedTensor | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if any(map(is_unbacked_int, (*value.shape, *value.stride()))):
        return None
    return ExpectedTensor(sizes(value.shape), sizes(value.stride()), value.dtype, value.device)


# Operators whose result depends on the strides of their arguments.
READS_LAYOUT = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
        written,
        aten._linalg_det.default,
        aten._linalg_slogdet.default,
    }
)


# Operators that can write to a given tensor, and the function that takes it as `out`.
WRITERS: dict[object, Callable[..., torch.Tensor]] = {
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
}


def writer_of(node: fx.Node, target: Target) -> Callable[..., torch.Tensor] | None:
    """The function that computes the node and takes its result as `out`, if there is one."""
    if node.target is aten.convolution.default and target.convolves_into_memory:
        return convolution_into
    return WRITERS.get(node.target)
