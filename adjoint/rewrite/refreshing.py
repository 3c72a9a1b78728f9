"""Fake values after a change: those of users are computed again, until they are as before.

A rule keeps shape and dtype of what it replaces, but may return other strides.  Then values that
are computed from it may have other strides, too, up to the first whose value is as it was.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Container, Iterator

import torch
from torch import fx

from adjoint.graph.evaluation import call_on_fakes
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import describe_value, set_value, value_of, value_or_none
from adjoint.graph.operations import has_bodies
from adjoint.graph.purity import is_impure
from adjoint.graph.sizes import assuming
from adjoint.torch_private import trees
from adjoint.torch_private.fake import fake_call, fake_mode_of
from adjoint.torch_private.modes import enable_python_dispatcher, isolated
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload, depends_on_data
from adjoint.torch_private.symbols import SYMBOLIC, same_number, same_numbers

# Another shape for the same elements in the same order.
RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class NotRefreshed(Exception):
    """A value cannot have other strides: the program returns it, or an operator depends on them."""


def same_values(one: object, other: object, strides: bool = True) -> bool:
    """Whether two fake values are alike in all that an operator can see."""
    mine, theirs = trees.leaves(one), trees.leaves(other)
    return len(mine) == len(theirs) and all(
        _same_leaf(a, b, strides) for a, b in zip(mine, theirs, strict=True)
    )


def _same_leaf(one: object, other: object, strides: bool) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.device == other.device
            and one.layout == other.layout
            and same_numbers(one.shape, other.shape)
            and (not strides or _same_strides(one, other))
        )
    if isinstance(one, (int, *SYMBOLIC)) and isinstance(other, (int, *SYMBOLIC)):
        return same_number(one, other)
    return type(one) is type(other) and bool(one == other)


def _same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided:
        return True
    sizes: list[object] = list(one.shape)
    if any(isinstance(size, int) and size == 0 for size in sizes):
        return True
    # The stride of an axis of one element does not matter.
    return all(
        (isinstance(size, int) and size == 1) or same_number(mine, theirs)
        for size, mine, theirs in zip(sizes, one.stride(), other.stride(), strict=True)
    )


def refresh_users(changed: fx.Node, but: Container[fx.Node] = ()) -> int:
    """Compute the values of users of `changed` anew, and of their users where they differ.

    Returns how many values were computed.  If one cannot change, all are as they were, and
    `NotRefreshed` is raised.  `but`: users that are about to go.
    """
    before: dict[fx.Node, object] = {}
    numbers = itertools.count()
    queue: list[tuple[fx.Node, int]] = []
    waiting: set[fx.Node] = set()

    def push(node: fx.Node) -> None:
        for user in node.users:
            if user not in waiting and user not in but:
                waiting.add(user)
                heapq.heappush(queue, (user, next(numbers)))

    push(changed)
    count = 0
    try:
        while queue:
            node, _ = heapq.heappop(queue)
            waiting.discard(node)
            value = _value_anew(node)
            count += 1
            if same_values(value, value_or_none(node)):
                continue
            before[node] = value_of(node)
            set_value(node, value)
            push(node)
    except NotRefreshed:
        for node, value in before.items():
            set_value(node, value)
        raise
    return count


@contextlib.contextmanager
def computing_fakes_of(graph_module: fx.GraphModule) -> Iterator[None]:
    """Fake values of nodes of a graph are computed here, unaffected by the caller's modes."""
    with (
        isolated(),
        assuming(graph_module),
        fake_mode_of(graph_module),
        enable_python_dispatcher(),
        torch.no_grad(),
    ):
        yield


def wrong_value(graph_module: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """The first node whose shape or dtype is not what its operator computes, and why."""
    with computing_fakes_of(graph_module):
        for node in graph_module.graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, OpOverload):
                continue
            if is_impure(node) or depends_on_data(node.target):
                # Each time it is computed, its size or number is a new symbol.
                continue
            try:
                value = fake_value(node)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                return node, f"fails with {type(error).__name__}: {error}"
            if not same_values(value, value_of(node), strides=False):
                computed, said = describe_value(value), describe_value(value_of(node))
                return node, f"computes {computed}, and its metadata says {said}"
    return None


def fake_value(node: fx.Node) -> object:
    """The value of a call, of the values of its arguments."""
    if node.target in RESHAPES:
        # The interpreter copies where strides do not allow a view; the value of a view does not.
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        return fake_call(node.target, args, kwargs)
    return call_on_fakes(node, {each: value_of(each) for each in node.all_input_nodes})


def _value_anew(node: fx.Node) -> object:
    if node.op == "output" or is_impure(node) or has_bodies(node):
        raise NotRefreshed
    if isinstance(node.target, HigherOrderOperator) or node.op != "call_function":
        raise NotRefreshed
    try:
        value = fake_value(node)
    except (RuntimeError, ValueError) as error:
        raise NotRefreshed from error
    with torch.no_grad():
        # A value of its own: a view op may return its argument.
        return trees.map_leaves(detached, value)
