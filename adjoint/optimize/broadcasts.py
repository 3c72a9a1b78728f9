"""Broadcasts and sums on the smaller side of a matrix product.

    expand(row) @ w          = expand(row @ w)
    a @ expand(column)       = expand(a @ column)
    a @ expand(row)          = sum(a, 1) * row            a row for each element summed over
    expand(column) @ b       = column * sum(b, 0)
    expand(number) @ w       = expand(number * w)         if w has one row
    sum(a @ w, 0)            = sum(a, 0) @ w
    sum(a @ w, 1)            = a @ sum(w, 1)
    sum(expand(x), 0)        = x * size

The transpose of a sum is a broadcast: the cotangent of every atom's energy is one number, and the
tangent of every point of a batch is one unit vector.  Such rows are propagated once.

Where numbers are summed first, they are of 32 bits or more.  Sums are taken in another order, and
0 * inf may be NaN on one side only.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import arguments_of, operand_of, tensor_of
from adjoint.optimize.views import (
    PERMUTATIONS,
    is_known_to_expand,
    merge_reshapes,
    permutation_of,
)
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites
from adjoint.torch_private.symbols import same_number

aten = torch.ops.aten
MM, MUL, T = aten.mm.default, aten.mul.Tensor, aten.t.default
SUM, EXPAND, VIEW = aten.sum.dim_IntList, aten.expand.default, aten.view.default
a, b = Wildcard("a"), Wildcard("b")


def _unrepeated(node: fx.Node, axis: int, is_factor: bool = False) -> Replacement | None:
    """A matrix of which `node` repeats the only row or column along `axis`; None if it is none.

    `is_factor`: it is multiplied by a matrix, element by element, so a number will do.
    """
    is_turned = False
    while node.target in PERMUTATIONS and permutation_of(node) == [1, 0]:
        node, axis, is_turned = operand_of(node), 1 - axis, not is_turned
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
    if is_factor and tensor_of(source).dim() == 0:
        return source
    if tensor_of(source).dim() == 2:
        return call(T, source) if is_turned else source
    one_row = [1, shape[1]] if axis == 0 else [shape[0], 1]
    return call(VIEW, source, one_row[::-1] if is_turned else one_row)


def _number(node: fx.Node) -> fx.Node | None:
    """The number that all elements of a row or column are; None if they may differ."""
    is_number = node.target is EXPAND and tensor_of(operand_of(node)).dim() == 0
    return operand_of(node) if is_number else None


def _shape_of(node: fx.Node) -> list[int]:
    return list(tensor_of(node).shape)


def _may_sum_first(node: fx.Node) -> bool:
    return tensor_of(node).dtype in (torch.float32, torch.float64)


@rewrites(call(MM, a, b))
def multiply_one_row(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """expand(row) @ w = expand(row @ w), and a @ expand(column) = expand(a @ column)"""
    inner: int | torch.SymInt = tensor_of(a).shape[1]
    has_one = isinstance(inner, int) and inner == 1
    row = _unrepeated(a, 0)
    if row is not None:
        number = _number(a) if has_one else None
        one = call(MM, row, b) if number is None else call(MUL, number, b)
        return call(EXPAND, one, _shape_of(match.root))
    column = _unrepeated(b, 1)
    if column is not None:
        number = _number(b) if has_one else None
        one = call(MM, a, column) if number is None else call(MUL, a, number)
        return call(EXPAND, one, _shape_of(match.root))
    return None


@rewrites(call(MM, a, b))
def sum_instead(a: fx.Node, b: fx.Node, match: Match) -> Replacement | None:
    """a @ expand(row) = sum(a, 1) * row, and expand(column) @ b = column * sum(b, 0)"""
    if not _may_sum_first(match.root):
        return None
    row = _unrepeated(b, 0, is_factor=True)
    if row is not None:
        return call(MUL, call(SUM, a, [1], True), row)
    column = _unrepeated(a, 1, is_factor=True)
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


@rewrites(call(SUM, call(EXPAND, a, ..., shared=True), ...))
def sum_of_equal(a: fx.Node, match: Match) -> Replacement | None:
    """sum(expand(x), 0) = x * size, for axes along which x is repeated"""
    root = match.root
    dims = arguments_of(root)[1]
    expanded = operand_of(root)
    if not _may_sum_first(root) or root.kwargs or not dims or not is_known_to_expand(a, expanded):
        return None
    shape: list[int | torch.SymInt] = [*tensor_of(expanded).shape]
    sizes: list[int | torch.SymInt] = [*tensor_of(a).shape]
    sizes = [*[1] * (len(shape) - len(sizes)), *sizes]
    size = 1
    for axis in {dim % len(shape) for dim in dims}:
        before, after = sizes[axis], shape[axis]
        if not isinstance(before, int) or before != 1 or not isinstance(after, int):
            return None
        size *= after
    kept = [axis for axis in range(len(shape)) if axis not in {dim % len(shape) for dim in dims}]
    if any(not same_number(sizes[axis], shape[axis]) for axis in kept):
        return None
    product = call(MUL, a, size)
    return product if _shape_of(a) == _shape_of(root) else call(VIEW, product, _shape_of(root))


RULES = (multiply_one_row, sum_instead, sum_first, sum_of_equal, merge_reshapes)


def push_broadcasts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Multiply and sum rows that are all the same once, and sum before a product, not after it."""
    return rewrite(graph_module, RULES, "push-broadcasts")
