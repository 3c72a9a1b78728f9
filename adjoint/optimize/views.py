"""Merging views: at most one permutation, one reshape or one expansion between two computing nodes.

    permute(permute(x, p), q) = permute(x, p[q])
    view(view(x, a), b)       = view(x, b)
    expand(expand(x, a), b)   = expand(x, b)

and a permutation, reshape or expansion that changes nothing is its argument.  Derivatives are full
of these: the reverse of a product transposes a transposed weight again, and each linear layer folds
and unfolds the axes in front of its rows.  They cost nothing when they run, but every later stage
looks at them.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import arguments_of, tensor_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites
from adjoint.torch_private.symbols import same_number, same_numbers

aten = torch.ops.aten

PERMUTATIONS = (aten.t.default, aten.transpose.int, aten.permute.default)
RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
x = Wildcard("x")


def permutation_of(node: fx.Node) -> list[int]:
    """For each axis of a transposed tensor, the axis of the argument."""
    rank = tensor_of(node).dim()
    if node.target is aten.permute.default:
        return [axis % rank for axis in arguments_of(node)[1]]
    order = list(range(rank))
    if rank:
        dims = (0, rank - 1) if node.target is aten.t.default else arguments_of(node)[1:]
        one, other = (dim % rank for dim in dims)
        order[one], order[other] = order[other], order[one]
    return order


def _argument(node: fx.Node) -> fx.Node:
    (argument, *_) = node.args
    assert isinstance(argument, fx.Node)
    return argument


@rewrites(call(PERMUTATIONS, call(PERMUTATIONS, ..., shared=True), ...))
def merge_permutations(match: Match) -> Replacement | None:
    """permute(permute(x, p), q) = permute(x, p[q])"""
    inner = _argument(match.root)
    first, second = permutation_of(inner), permutation_of(match.root)
    merged = [first[axis] for axis in second]
    base = _argument(inner)
    return base if merged == sorted(merged) else call(aten.permute.default, base, merged)


@rewrites(call(PERMUTATIONS, x, ...))
def drop_identical_permutation(x: fx.Node, match: Match) -> Replacement | None:
    """permute(x, [0, 1, ...]) = x"""
    order = permutation_of(match.root)
    return x if order == sorted(order) else None


@rewrites(call(RESHAPES, call(RESHAPES, ..., shared=True), ...))
def merge_reshapes(match: Match) -> Replacement | None:
    """view(view(x, a), b) = view(x, b)"""
    base = _argument(_argument(match.root))
    shape = _shape_argument(match.root)
    if same_numbers(tensor_of(base).shape, tensor_of(match.root).shape):
        return base
    return None if shape is None else call(aten.view.default, base, shape)


@rewrites(call(RESHAPES, x, ...))
def drop_identical_reshape(x: fx.Node, match: Match) -> Replacement | None:
    """view(x, x.shape) = x"""
    return x if same_numbers(tensor_of(x).shape, tensor_of(match.root).shape) else None


@rewrites(call(aten.expand.default, call(aten.expand.default, x, ..., shared=True), ...))
def merge_expansions(x: fx.Node, match: Match) -> Replacement | None:
    """expand(expand(x, a), b) = expand(x, b)"""
    if tensor_of(x).dim() != tensor_of(_argument(match.root)).dim():
        # Axes counted from the last: -1 keeps the size of the inner one.
        shape = arguments_of(match.root)[1]
        if any(isinstance(size, int) and size == -1 for size in shape):
            return None
    if not is_known_to_expand(x, match.root):
        return None
    return call(aten.expand.default, x, match.root.args[1])


@rewrites(call(aten.expand.default, x, ...))
def drop_identical_expansion(x: fx.Node, match: Match) -> Replacement | None:
    """expand(x, x.shape) = x"""
    return x if same_numbers(tensor_of(x).shape, tensor_of(match.root).shape) else None


def is_known_to_expand(x: fx.Node, to: fx.Node) -> bool:
    """Whether sizes alone say which axes of `x` are repeated to give the shape of `to`.

    A size that depends on data may be that of `x`, or be repeated to it.
    """
    mine: list[object] = list(tensor_of(x).shape)
    theirs: list[object] = list(tensor_of(to).shape)
    return all(
        (isinstance(one, int) and one == 1) or same_number(one, other)
        for one, other in zip(reversed(mine), reversed(theirs), strict=False)
    )


def _shape_argument(node: fx.Node) -> object:
    """The shape of a reshape as an argument; None if that would need new nodes."""
    if node.target in (aten.view.default, aten._unsafe_view.default):
        return node.args[1]
    shape: list[object] = list(tensor_of(node).shape)
    return shape if all(isinstance(size, int) for size in shape) else None


RULES = (
    merge_permutations,
    drop_identical_permutation,
    merge_reshapes,
    drop_identical_reshape,
    merge_expansions,
    drop_identical_expansion,
)


def merge_views(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge permutations of permutations, reshapes of reshapes and expansions of expansions."""
    return rewrite(graph_module, RULES, "merge-views")
