"""Broadcasts and sums on the smaller side of a matrix product.

    expand(row) @ w          = expand(row @ w)
    a @ expand(column)       = expand(a @ column)
    a @ expand(row)          = sum(a, 1) * row            a row for each element summed over
    expand(column) @ b       = column * sum(b, 0)
    sum(a @ w, 0)            = sum(a, 0) @ w
    sum(a @ w, 1)            = a @ sum(w, 1)

The transpose of a sum is a broadcast: the cotangent of every atom's energy is one number, and the
tangent of every point of a batch is one unit vector.  Such rows are propagated once.

Where numbers are summed first, they are of 32 bits or more.  Sums are taken in another order, and
0 * inf may be NaN on one side only.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import arguments_of, operand_of, tensor_of
from adjoint.optimize.views import PERMUTATIONS, is_known_to_expand, permutation_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
MM, MUL, T = aten.mm.default, aten.mul.Tensor, aten.t.default
SUM, EXPAND, VIEW = aten.sum.dim_IntList, aten.expand.default, aten.view.default
a, b = Wildcard("a"), Wildcard("b")


def _unrepeated(node: fx.Node, axis: int) -> Replacement | None:
    """A matrix of which `node` repeats the only row or column along `axis`; None if it is none."""
    if node.target in PERMUTATIONS and permutation_of(node) == [1, 0]:
        found = _unrepeated(operand_of(node), 1 - axis)
        return None if found is None else call(T, found)
    if node.target is not EXPAND:
        return None
    source = operand_of(node)
    shape: list[int | torch.SymInt] = [*tensor_of(node).shape]
    sizes: list[int | torch.SymInt] = [*tensor_of(source).shape]
    if not is_known_to_expand(source, node):
        return None
    sizes = [*[1] * (2 - len(sizes)), *sizes]
    is_repeated = isinstance(sizes[axis], int) and sizes[axis] == 1
    if not is_repeated or (isinstance(shape[axis], int) and shape[axis] == 1):
        return None
    # Along the other axis it has the whole size.
    other = sizes[1 - axis]
    if isinstance(other, int) and other != shape[1 - axis]:
        return None
    if tensor_of(source).dim() == 2:
        return source
    return call(VIEW, source, [1, shape[1]] if axis == 0 else [shape[0], 1])


def _shape_of(node: fx.Node) -> list[int]:
    return list(tensor_of(node).shape)


def _may_sum_first(node: fx.Node) -> bool:
    return tensor_of(node).dtype in (torch.float32, torch.float64)


@rewrites(call(MM, a, b))
def multiply_one_row(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """expand(row) @ w = expand(row @ w), and a @ expand(column) = expand(a @ column)"""
    row = _unrepeated(a, 0)
    if row is not None:
        return call(EXPAND, call(MM, row, b), _shape_of(match.root))
    column = _unrepeated(b, 1)
    if column is not None:
        return call(EXPAND, call(MM, a, column), _shape_of(match.root))
    return None


@rewrites(call(MM, a, b))
def sum_instead(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """a @ expand(row) = sum(a, 1) * row, and expand(column) @ b = column * sum(b, 0)"""
    if not _may_sum_first(match.root):
        return None
    row = _unrepeated(b, 0)
    if row is not None:
        return call(MUL, call(SUM, a, [1], True), row)
    column = _unrepeated(a, 1)
    return None if column is None else call(MUL, column, call(SUM, b, [0], True))


@rewrites(call(SUM, call(MM, a, b), ...))
def sum_first(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """sum(a @ w, 0) = sum(a, 0) @ w, and sum(a @ w, 1) = a @ sum(w, 1)"""
    root = match.root
    dims = arguments_of(root)[1]
    keeps = len(root.args) > 2 and bool(root.args[2])
    if not _may_sum_first(root) or root.kwargs or len(dims) != 1:
        return None
    axis = dims[0] % 2
    summed = (
        call(MM, call(SUM, a, [0], True), b) if axis == 0 else call(MM, a, call(SUM, b, [1], True))
    )
    return summed if keeps else call(VIEW, summed, _shape_of(root))


RULES = (multiply_one_row, sum_instead, sum_first)


def push_broadcasts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Multiply rows that are all the same once, and sum before a matrix product, not after it."""
    return rewrite(graph_module, RULES, "push-broadcasts")
