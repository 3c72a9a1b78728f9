"""Whether a new value may take the place of an old one in a graph.

* It has the shape, dtype and device of the old one, or it is an error.
* An input does not take the place of a copy of it, which a derivative may save.
* A result of the program stays a tensor of its own: an existing value, or a view of one, never
  takes its place.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from adjoint.graph.derivative import order_of_graph
from adjoint.graph.descriptors import Tangent
from adjoint.graph.metadata import describe_value, descriptor_of, has_descriptor, value_of
from adjoint.graph.reachability import reachable
from adjoint.rewrite.building import Builder, WrongReplacement
from adjoint.rewrite.patterns import NoMatch, can_return
from adjoint.rewrite.refreshing import same_values
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import hint

_GETITEM = operator.getitem


def check_value(old: fx.Node, new: object) -> None:
    """Raise `WrongReplacement` unless `new` has the shape, dtype and device of `old`."""
    if not isinstance(new, fx.Node):
        raise WrongReplacement(f"the replacement is {new!r}, which is not a value of the graph")
    if not same_values(value_of(new), value_of(old), strides=False):
        if _may_be_same(value_of(new), value_of(old)):
            raise NoMatch
        raise WrongReplacement(
            f"the replacement computes {describe_value(value_of(new))}, "
            f"the pattern {describe_value(value_of(old))}"
        )


def _may_be_same(one: object, other: object) -> bool:
    """Whether sizes are equal in the captured call, though not known to be equal in every call."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if (one.dtype, one.device, one.dim()) != (other.dtype, other.device, other.dim()):
        return False
    return [hint(size) for size in one.shape] == [hint(size) for size in other.shape]


def may_replace(old: fx.Node, new: fx.Node, builder: Builder) -> bool:
    """Whether results of the program stay tensors of their own, with histories of their own."""
    is_new = new in builder.made
    if not _has_known_sizes(old, new):
        return False
    if not is_new and not can_return(old):
        return False
    if not is_new and not _is_view(old) and _is_of_input(new):
        return False
    shares = not is_new or (_base(new) not in builder.made and not _is_view(old))
    if not shares or not is_returned(old):
        return True
    # A value that is computed here, and that nothing else uses, may be returned itself.  One with
    # other uses may be a saved tensor, which users must not write to, with a history of its own.
    computed = new.op == "call_function" and not _is_view(new) and new.target is not _GETITEM
    others = reachable(new.users, lambda node: () if node is old else node.users)
    return computed and not is_new and all(node.op != "output" for node in others)


def _has_known_sizes(old: fx.Node, new: fx.Node) -> bool:
    """Whether each size that is a number in `old` is one in `new`.

    A guard may say that a symbol is 1, but only for a number do operators know that the axis is
    repeated to a size that depends on data.
    """
    for one, other in zip(trees.leaves(value_of(old)), trees.leaves(value_of(new)), strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            sizes: list[tuple[object, object]] = list(zip(one.shape, other.shape, strict=True))
            if any(isinstance(a, int) and not isinstance(b, int) for a, b in sizes):
                return False
    return True


def _is_of_input(node: fx.Node) -> bool:
    """Whether the value shares the memory of an input that the user may write to.

    If it replaced a copy, it might be a saved tensor, and a write to the input would be an error.
    """
    node = _base(node)
    if node.op != "placeholder":
        return False
    described = descriptor_of(node) if has_descriptor(node) else None
    # The cotangent of a result is not saved: the graph that takes it is the backward graph.
    return not isinstance(described, Tangent) or described.order < order_of_graph(node.graph)


def _base(node: fx.Node) -> fx.Node:
    """What the value is a view of; itself if it is none."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(node.target.is_view)


def is_returned(node: fx.Node) -> bool:
    """Whether the program returns the value, or one that may share its memory."""
    return any(
        user.op == "output"
        or ((_is_view(user) or not isinstance(user.target, OpOverload)) and is_returned(user))
        for user in node.users
    )
