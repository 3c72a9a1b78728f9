"""Tensors put together from parts, and parts of such tensors.

    select_backward(a, i) + select_backward(b, j) + ...   = stack([a, b, ...]) + 0.0
    slice_backward(a, i:j) + slice_backward(b, j:k) + ... = cat([a, b, ...]) + 0.0
    stack([select(x, 0), select(x, 1), ...])              = x
    cat([slice(x, :i), slice(x, i:j), ...])               = x
    select(stack([a, b, ...]), 1)                         = b
    slice(cat([a, b, ...]), i:j)                          = b, or a slice of it

The derivative of a program that takes a tensor apart pads each part with zeros and adds them all,
so every element is a sum of as many terms as there are parts.  Adding 0.0 makes 0.0 of -0.0, as the
sum does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from adjoint.graph.metadata import computes_tensor, operand_of, tensor_of, value_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.matching import arguments
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites
from adjoint.torch_private.symbols import same_numbers

aten = torch.ops.aten
ADD = aten.add.Tensor
STACK, CAT = aten.stack.default, aten.cat.default
SELECT, SLICE = aten.select.int, aten.slice.Tensor
SELECT_BACKWARD, SLICE_BACKWARD = aten.select_backward.default, aten.slice_backward.default
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)
x = Wildcard("x")


def terms_of(match: Match, root: fx.Node) -> list[fx.Node]:
    """What `root`, a sum of tensors of one shape and dtype, adds; inner sums are absorbed."""
    terms: list[fx.Node] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        is_inner = node is root or set(node.users) <= match.nodes.keys()
        if is_inner and is_plain_sum(node):
            match.absorb(node, ADD, shared=node is root)
            waiting += [operand_of(node, 1), operand_of(node)]
        else:
            terms.append(node)
    return terms


def is_plain_sum(node: object) -> bool:
    """Whether this adds two tensors of its own shape and dtype."""
    if not isinstance(node, fx.Node) or node.target is not ADD or node.kwargs:
        return False
    if not all(isinstance(each, fx.Node) and computes_tensor(each) for each in node.args):
        return False
    return all(_are_alike(each, node) for each in node.all_input_nodes)


def is_inner_sum(node: fx.Node) -> bool:
    """Whether the only use of a sum is in another sum, which is looked at instead."""
    users = list(node.users)
    return len(users) == 1 and is_plain_sum(users[0])


def _are_alike(one: fx.Node, other: fx.Node) -> bool:
    mine, theirs = tensor_of(one), tensor_of(other)
    return mine.dtype == theirs.dtype and same_numbers(mine.shape, theirs.shape)


@rewrites(call(ADD, ...))
def join_padded_parts(match: Match) -> Replacement | None:
    """select_backward(a, i) + select_backward(b, j) + ... = stack([a, b, ...]) + 0.0"""
    if is_inner_sum(match.root) or not is_plain_sum(match.root):
        return None
    terms = terms_of(match, match.root)
    for op in (SELECT_BACKWARD, SLICE_BACKWARD):
        padded = [each for each in terms if each.target is op and is_absorbed(each, match)]
        others = [each for each in terms if each not in padded]
        joined = _joined(padded) if len(padded) > 1 and len(set(padded)) == len(padded) else None
        if joined is not None:
            for each in padded:
                match.absorb(each, op)
            whole = call(ADD, joined, 0.0)
            for other in others:
                whole = call(ADD, whole, other)
            return whole
    return None


def is_absorbed(node: fx.Node, match: Match) -> bool:
    """Whether only nodes of the match use the node, so that it is not needed afterwards."""
    return set(node.users) <= match.nodes.keys()


def _joined(padded: Sequence[fx.Node]) -> Replacement | None:
    """The parts side by side; None if they are not parts of all of one axis, each once."""
    axes = {_axis(each, tensor_of(each).dim()) for each in padded}
    if len(axes) != 1 or None in axes:
        return None
    (axis,) = axes
    assert axis is not None
    size = tensor_of(padded[0]).shape[axis]
    spans = sorted(_spans(padded, size), key=lambda span: span[0])
    end = 0
    for start, stop, _ in spans:
        if start != end:
            return None
        end = stop
    if end != size:
        return None
    op = STACK if padded[0].target is SELECT_BACKWARD else CAT
    return call(op, [each.args[0] for _, _, each in spans], axis)


def _axis(part: fx.Node, rank: int) -> int | None:
    """The axis along which a part is taken, or padded, of a tensor with `rank` axes."""
    axis = arguments(part.target, part.args, part.kwargs)["dim"]
    return axis % rank if isinstance(axis, int) else None


def _spans(parts: Sequence[fx.Node], size: object) -> Iterator[tuple[int, int, fx.Node]]:
    """Where each part begins and ends; (-1, -1) if that is not known."""
    for each in parts:
        start, stop = _span(each, size)
        yield start, stop, each


def _span(part: fx.Node, size: object) -> tuple[int, int]:
    given = arguments(part.target, part.args, part.kwargs)
    unknown = (-1, -1)
    if not isinstance(size, int):
        return unknown
    if "index" in given:
        index = given["index"]
        return (index % size, index % size + 1) if isinstance(index, int) and size else unknown
    start, end, step = given["start"], given["end"], given["step"]
    start = 0 if start is None else start
    end = size if end is None else end
    if not (isinstance(start, int) and isinstance(end, int) and step == 1):
        return unknown
    start, stop, _ = slice(start, end).indices(size)
    return (start, stop) if start <= stop else unknown


@rewrites(call((STACK, CAT), x, ...))
def join_all_parts(x: Sequence[fx.Node], match: Match) -> Replacement | None:
    """stack([select(a, 0), select(a, 1), ...]) = cat([slice(a, :i), slice(a, i:), ...]) = a"""
    root = match.root
    whole = whole_of(x, axis_of(root), SELECT if root.target is STACK else SLICE)
    if whole is None or tensor_of(whole).dtype != tensor_of(root).dtype:
        return None
    return whole if same_numbers(tensor_of(whole).shape, tensor_of(root).shape) else None


def whole_of(parts: Sequence[object], axis: int, op: object) -> fx.Node | None:
    """The tensor that is all of `parts` in order, taken by `op` along an axis; None if there is
    none."""
    together = _split_into(parts, axis, op)
    if together is not None:
        return together
    taken = [each for each in parts if isinstance(each, fx.Node) and each.target is op]
    if not parts or len(taken) < len(parts):
        return None
    whole, *others = dict.fromkeys(map(operand_of, taken))
    value = tensor_of(whole)
    if others or any(_axis(each, value.dim()) != axis for each in taken):
        return None
    end = 0
    for start, stop, _ in _spans(taken, value.shape[axis]):
        if start != end:
            return None
        end = stop
    return whole if end == value.shape[axis] else None


def _split_into(parts: Sequence[object], axis: int, op: object) -> fx.Node | None:
    """The same of parts that one call took: of a split, or of an unbinding if `op` selects."""
    splits = (aten.unbind.int,) if op is SELECT else SPLITS
    items = [e for e in parts if isinstance(e, fx.Node) and e.target is operator.getitem]
    sources = dict.fromkeys(map(operand_of, items))
    if len(items) < len(parts) or len(sources) != 1:
        return None
    (split,) = sources
    if split.target not in splits:
        return None
    whole = operand_of(split)
    in_order = [each.args[1] for each in items] == list(range(len(value_of(split))))
    return whole if in_order and _axis(split, tensor_of(whole).dim()) == axis else None


@rewrites(call(SELECT, call(STACK, x, ..., shared=True), ...))
def take_stacked(x: Sequence[fx.Node], match: Match) -> Replacement | None:
    """select(stack([a, b, ...]), 1) = b"""
    stacked = operand_of(match.root)
    if _axis(match.root, tensor_of(stacked).dim()) != axis_of(stacked):
        return None
    start, _ = _span(match.root, len(x))
    return x[start] if start >= 0 else None


@rewrites(call(SLICE, call(CAT, x, ..., shared=True), ...))
def take_concatenated(x: Sequence[fx.Node], match: Match) -> Replacement | None:
    """slice(cat([a, b, ...]), i:j) = b, or a slice of it"""
    whole = operand_of(match.root)
    axis = axis_of(whole)
    if _axis(match.root, tensor_of(whole).dim()) != axis:
        return None
    start, stop = _span(match.root, tensor_of(whole).shape[axis])
    end = 0
    for part in x:
        # An empty vector may stand beside tensors of any rank.
        if tensor_of(part).dim() != tensor_of(whole).dim():
            return None
        begin = end
        size: int | torch.SymInt = tensor_of(part).shape[axis]
        if start < 0 or not isinstance(size, int) or begin > start:
            return None
        end = begin + size
        if begin <= start and stop <= end and (start < end or size == stop - start):
            inside = (start - begin, stop - begin)
            return part if inside == (0, size) else call(SLICE, part, axis, *inside)
    return None


def axis_of(node: fx.Node) -> int:
    """The axis along which a concatenation, or a stack, puts its parts."""
    dim: int = arguments(node.target, node.args, node.kwargs)["dim"]
    return dim % tensor_of(node).dim()


RULES = (join_padded_parts, join_all_parts, take_stacked, take_concatenated)


def join_parts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Put tensors together from their parts, and take parts, without the tensors in between."""
    return rewrite(graph_module, RULES, "join-parts")
