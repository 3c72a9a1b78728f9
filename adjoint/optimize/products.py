"""Several matrix products as one.

    a @ w + b @ w + ...       = (a + b + ...) @ w
    a @ b + c @ d + ...       = [a c ...] @ [b; d; ...]
    cat([a @ w, b @ w, ...])  = cat([a, b, ...]) @ w

The derivative with respect to a weight that is used in every step of a loop is a sum of products,
one for each step; each writes a matrix as large as the weight, for the sum to read.  Where the
dimension that is summed over is short, the operands side by side are smaller.  A product of few
rows is slow because it reads all of the weight for each row.

Sums are taken in another order, and 0 * inf may be NaN on one side only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from adjoint.graph.metadata import arguments_of, operand_of, tensor_of
from adjoint.open_types import OpArgument
from adjoint.optimize.parts import (
    CAT,
    SELECT,
    SLICE,
    STACK,
    axis_of,
    is_absorbed,
    is_inner_sum,
    is_plain_sum,
    terms_of,
    whole_of,
)
from adjoint.optimize.views import PERMUTATIONS, permutation_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Call, Match, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
ADD, MM, VIEW, T = aten.add.Tensor, aten.mm.default, aten.view.default, aten.t.default
x = Wildcard("x")

# A product of at least this many rows is as fast by itself.
MIN_ROWS_ALONE = 512

# Fewer products are not put side by side: two concatenations would take their place.
MIN_PRODUCTS = 3

# Copying an operand pays if it is at most this many times as large as the result.
MAX_BYTES_COPIED_PER_BYTE = 4


@rewrites(call(ADD, ...))
def add_products(match: Match) -> Replacement | None:
    """a @ w + b @ w = (a + b) @ w, and a @ b + c @ d = [a c] @ [b; d]"""
    if is_inner_sum(match.root) or not is_plain_sum(match.root):
        return None
    terms = terms_of(match, match.root)
    products = [each for each in terms if each.target is MM and is_absorbed(each, match)]
    if len(products) < 2 or len(set(products)) < len(products):
        return None
    chosen, joined = _with_common_operand(products) or _side_by_side(products) or ([], None)
    for each in chosen:
        match.absorb(each, MM)
    for each in terms:
        if joined is not None and each not in chosen:
            joined = call(ADD, joined, each)
    return joined


def _with_common_operand(products: Sequence[fx.Node]) -> tuple[list[fx.Node], Call] | None:
    for side in (1, 0):
        by_operand: dict[fx.Node, list[fx.Node]] = {}
        for each in products:
            by_operand.setdefault(operand_of(each, side), []).append(each)
        for common, several in by_operand.items():
            if len(several) > 1:
                other: fx.Node | Call = operand_of(several[0], 1 - side)
                for each in several[1:]:
                    other = call(ADD, other, each.args[1 - side])
                operands = (other, common) if side else (common, other)
                return several, call(MM, *operands)
    return None


def _side_by_side(products: Sequence[fx.Node]) -> tuple[list[fx.Node], Call] | None:
    short = [each for each in products if _is_short(each)]
    if len(short) < MIN_PRODUCTS:
        return None
    short = _in_order(short)
    left = _concatenated([operand_of(each) for each in short], 1)
    right = _concatenated([operand_of(each, 1) for each in short], 0)
    return short, call(MM, left, right)


def _is_short(product: fx.Node) -> bool:
    """Whether the operands of a product are smaller than its result."""
    sizes = _known_sizes(product)
    if sizes is None:
        return False
    rows, depth, columns = sizes
    return depth * (rows + columns) <= 2 * rows * columns


def _known_sizes(product: fx.Node) -> tuple[int, int, int] | None:
    """Rows, depth and columns of a matrix product; None if one of them is symbolic."""
    rows, columns = tensor_of(product).shape
    depth = tensor_of(product.args[0]).shape[1]  # type: ignore[arg-type]
    is_known = all(isinstance(each, int) for each in (rows, depth, columns))
    return (rows, depth, columns) if is_known else None


def _in_order(products: list[fx.Node]) -> list[fx.Node]:
    """The products in an order in which their operands are parts of one tensor, or are
    concatenated elsewhere, if there is one.
    """
    for side in (0, 1):
        by_base = {_untransposed(operand_of(each, side)): each for each in products}
        if len(by_base) < len(products):
            continue
        for user in next(iter(by_base)).users:
            whole = arguments_of(user)[0] if user.target in (CAT, STACK) else ()
            if set(whole) == set(by_base):
                return [by_base[each] for each in whole]
        if all(each.target is SELECT for each in by_base):
            ordered = sorted(by_base, key=lambda each: arguments_of(each)[2])
            if whole_of(ordered, 0, SELECT) is not None:
                return [by_base[each] for each in ordered]
    return products


def _untransposed(node: fx.Node) -> fx.Node:
    is_transposed = node.target in PERMUTATIONS and permutation_of(node) == [1, 0]
    return operand_of(node) if is_transposed else node


def _concatenated(parts: Sequence[fx.Node], axis: int) -> fx.Node | Call:
    """Matrices side by side; the transpose of a concatenation, if all are transposes."""
    bases = [_untransposed(each) for each in parts]
    if all(base is not part for base, part in zip(bases, parts, strict=True)):
        return call(T, _concatenated(bases, 1 - axis))
    if axis == 0:
        whole = whole_of(parts, 0, SLICE)
        if whole is not None:
            return whole
        whole = whole_of(parts, 0, SELECT)
        if whole is not None and tensor_of(whole).is_contiguous():
            return call(VIEW, whole, _rows_and_columns(whole))
    return call(CAT, list(parts), axis)


def _rows_and_columns(node: fx.Node) -> list[int]:
    return [-1, tensor_of(node).shape[-1]]


@rewrites(call((CAT, STACK), x, ...))
def stack_products(x: Sequence[OpArgument], match: Match) -> Replacement | None:
    """cat([a @ w, b @ w, ...]) = cat([a, b, ...]) @ w"""
    root = match.root
    if len(x) < 2 or len(set(x)) < len(x) or axis_of(root) != 0:
        return None
    if any(not isinstance(each, fx.Node) or each.target is not MM for each in x):
        return None
    (weight, *others) = dict.fromkeys(each.args[1] for each in x)
    if others or not all(map(_has_few_rows, x)):
        return None
    for each in x:
        match.absorb(each, MM)
    product = call(MM, _concatenated([each.args[0] for each in x], 0), weight)
    return product if root.target is CAT else call(VIEW, product, list(tensor_of(root).shape))


def _has_few_rows(product: fx.Node) -> bool:
    sizes = _known_sizes(product)
    if sizes is None:
        return False
    rows, depth, columns = sizes
    return rows < MIN_ROWS_ALONE and depth <= MAX_BYTES_COPIED_PER_BYTE * columns


RULES = (add_products, stack_products)


def join_products(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute sums and concatenations of matrix products by one product."""
    return rewrite(graph_module, RULES, "join-products")
