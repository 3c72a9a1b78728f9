"""Writes to parts of tensors, each as one call.

    select_scatter(x, index_put(select(x, 0, i), at, v), 0, i) = written(x, (select 0 i), index_put,
                                                                         at, v)
    slice_scatter(x, copy(slice(x, 2, 5, 6), v), 2, 5, 6) = written(x, (slice 2 5 6), copy, v)

A write through views is captured as a new value of each tensor on the way.  One call can write the
elements that change and nothing else, in the memory of `x` if its old value is not read any more
(`in_place_calls.py`); the ops on the left would copy all of `x`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.descriptors import InputMutation
from adjoint.graph.metadata import (
    descriptor_of,
    has_output_descriptors,
    inputs_of,
    output_descriptors,
    output_node,
    tensor_of,
    value_or_none,
)
from adjoint.graph.origins import for_part_of
from adjoint.graph.origins import replace as put_in_place_of
from adjoint.graph.partial_writes import REGIONS, SCATTERS, ViewCall, written
from adjoint.graph.purity import is_never_dead
from adjoint.lower.selection import is_plain
from adjoint.lower.sizes import Size, estimate, is_one, product, sizes
from adjoint.lower.views import shape_of
from adjoint.torch_private.symbols import same_number

aten = torch.ops.aten

# An addition at indices is a kernel; but a call that adds to an input in place is faster if the
# input has at least this many times as many elements as are added.
MIN_RATIO_TO_ADD_IN_PLACE = 4

_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
_PERMUTATIONS = (aten.permute.default, aten.transpose.int, aten.t.default)
_SAME = (aten.alias.default, aten.detach.default)


@dataclass(frozen=True)
class PartialWrite:
    """An op on a view of a tensor, which writes to it."""

    views: tuple[ViewCall, ...]
    op: object
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def through(self, view: ViewCall) -> PartialWrite:
        """The same write, to a tensor of which the written one is a view."""
        return replace(self, views=(view, *self.views))

    @property
    def is_whole(self) -> bool:
        """Whether it replaces every element."""
        is_part = any(view in SCATTERS.values() for view, _, _ in self.views)
        return REGIONS[self.op].places == 0 and not is_part


@works_on("node")
def join_writes(graph_module: fx.GraphModule, overwrites: bool = False) -> fx.GraphModule:
    """Make one call of each write to a part of a tensor, whichever views it goes through.

    `overwrites`: new values of inputs may be stored in the inputs.
    """
    graph = graph_module.graph
    inputs = _overwritten(graph) if overwrites else {}
    for node in reversed(list(graph.nodes)):
        if not node.users and not is_never_dead(node):
            # A value on the way to one that has been replaced.
            graph.erase_node(node)
            continue
        found = _writes(node)
        if found is None:
            continue
        base, writes = found
        while base.target in _SAME:
            (base,) = base.all_input_nodes
        if not _are_alike(node, base) or not all(
            _pays(each, base, node, inputs) for each in writes
        ):
            continue
        if node in inputs:
            inputs[base] = inputs[node]
        _replace(node, base, writes)
    for node in graph.find_nodes(op="call_function", target=written):
        # An augmented assignment to a part computes the part in place, then assigns it.
        before = node.args[0]
        if before.target is written and before.args[1:] == node.args[1:] and _is_idempotent(node):
            put_in_place_of(node, before)
    return graph_module


def _is_idempotent(node: fx.Node) -> bool:
    """Whether writing twice is the same as writing once."""
    return REGIONS[node.args[2]].places == 0


def _overwritten(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The nodes that are new values of inputs, and these inputs."""
    if not has_output_descriptors(graph):
        return {}
    inputs = {descriptor_of(node): node for node in inputs_of(graph)}
    pairs = zip(output_node(graph).args[0], output_descriptors(graph), strict=True)  # type: ignore[arg-type]
    return {
        value: inputs[each.of]
        for value, each in pairs
        if isinstance(each, InputMutation) and isinstance(value, fx.Node) and each.of in inputs
    }


def _writes(node: fx.Node) -> tuple[fx.Node, list[PartialWrite]] | None:
    """The tensor of which a node is a new value, and the writes that make it that."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    base, target = node.args[0], node.target
    if target in REGIONS:
        if len(node.args) <= REGIONS[target].places:
            return None
        return base, [PartialWrite((), target, tuple(node.args[1:]), dict(node.kwargs))]
    if target in SCATTERS:
        if len(node.args) < 2 or not isinstance(node.args[1], fx.Node):
            return None
        new, place = node.args[1], tuple(node.args[2:])
        view: ViewCall = (SCATTERS[target], place, dict(node.kwargs))

        def shows_part(each: fx.Node) -> bool:
            is_view = each.target is SCATTERS[target] and each.args == (base, *place)
            # What was written there last is there.
            is_last = base.target is target and base.args[1:] == (each, *place)
            return (is_view and each.kwargs == node.kwargs) or (
                is_last and base.kwargs == node.kwargs
            )

        inside = _writes_until(new, shows_part)
        if inside is None:
            return base, [PartialWrite((view,), aten.copy.default, (new,), {})]
        return base, [each.through(view) for each in inside[1]]
    if target in _RESHAPES or target in _PERMUTATIONS or target in _SAME:
        inside = _writes_until(base, lambda each: _is_inverse(node, each))
        if inside is None:
            return None
        shown, writes = inside
        view = (shown.target, tuple(shown.args[1:]), dict(shown.kwargs))  # type: ignore[assignment]
        return shown.args[0], [each.through(view) for each in writes]  # type: ignore[return-value]
    return None


def _writes_until(
    node: fx.Node, is_first: Callable[[fx.Node], bool]
) -> tuple[fx.Node, list[PartialWrite]] | None:
    """The writes between a value for which `is_first` holds and `node`; None if there are none."""
    writes: list[PartialWrite] = []
    while not is_first(node):
        found = _writes(node)
        if found is None:
            return None
        node = found[0]
        writes = [*found[1], *writes]
    return (node, writes) if writes else None


def _is_inverse(undone: fx.Node, view: fx.Node) -> bool:
    """Whether a view op is undone by another one on a value of the same shape."""
    base = view.args[0] if view.op == "call_function" and view.args else None
    if not isinstance(base, fx.Node):
        return False
    families = (_RESHAPES, _PERMUTATIONS, _SAME)
    if not any(view.target in each and undone.target in each for each in families):
        return False
    if not _same_sizes(shape_of(undone), shape_of(base)):
        return False
    if undone.target not in _PERMUTATIONS:
        return True
    there, back = _order(view), _order(undone)
    return [there[axis] for axis in back] == list(range(len(there)))


def _order(node: fx.Node) -> list[int]:
    """The axes of its argument that the axes of a permutation are."""
    order = list(range(len(shape_of(node))))
    if node.target is aten.permute.default:
        dims = node.args[1]
        return [axis % len(order) for axis in dims]  # type: ignore[union-attr, operator, misc]
    if node.target is aten.t.default:
        return order[::-1]
    one, other = node.args[1:3]
    if order:
        order[one], order[other] = order[other], order[one]  # type: ignore[index]
    return order


def _same_sizes(one: Sequence[Size], other: Sequence[Size]) -> bool:
    return len(one) == len(other) and all(map(same_number, one, other))


def _are_alike(node: fx.Node, base: fx.Node) -> bool:
    """Whether both values have the same elements in the same places, none of which overlap."""
    one, other = value_or_none(node), value_or_none(base)
    if not (is_plain(one) and is_plain(other)):
        return False
    new, old = tensor_of(node), tensor_of(base)
    if new.dtype != old.dtype or not _same_sizes(shape_of(node), shape_of(base)):
        return False
    axes = zip(shape_of(base), sizes(new.stride()), sizes(old.stride()), strict=True)
    return all(is_one(size) or (b != 0 and same_number(a, b)) for size, a, b in axes)


def _pays(
    write: PartialWrite, base: fx.Node, node: fx.Node, inputs: dict[fx.Node, fx.Node]
) -> bool:
    """Whether a call is better than what kernels would do."""
    if write.is_whole:
        return False
    if not _adds(write):
        return True
    values = [each for each in write.args if isinstance(each, fx.Node)]
    count = max(estimate(product(shape_of(each))) for each in values)
    total = estimate(product(shape_of(base)))
    return node in inputs and count * MIN_RATIO_TO_ADD_IN_PLACE <= total


def _adds(write: PartialWrite) -> bool:
    """Whether kernels can do it: they add at indices."""
    if write.op in (aten.index_add.default, aten.scatter_add.default):
        return True
    if write.op is not aten.index_put.default:
        return False
    accumulate = write.args[2] if len(write.args) > 2 else write.kwargs.get("accumulate", False)
    return bool(accumulate)


def _replace(node: fx.Node, base: fx.Node, writes: Sequence[PartialWrite]) -> None:
    graph = node.graph
    for write in writes:
        with graph.inserting_before(node):
            new = graph.create_node("call_function", written)
        made = (base, write.views, write.op, write.args, write.kwargs)
        new.args = made  # type: ignore[assignment]
        new.meta = for_part_of(node, tensor_of(node))
        base = new
    base.meta.pop("part_of", None)
    if "part_of" in node.meta:
        base.meta["part_of"] = node.meta["part_of"]
    put_in_place_of(node, base)
