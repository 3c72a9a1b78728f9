"""Algebra that is exact in floating point, for every number: infinities, NaN and signed zeros.

    x * 1 = x / 1 = x ** 1 = x        x - 0 = x + (-0.0) = x        -(-x) = x
    x + (-y) = x - y                  x - (-y) = x + y
    -(x * c) = (-x) * c = x * (-c)    x op expand(y) = x op y, where x has the whole shape

Not among them: x + 0.0, which makes 0.0 of -0.0, and x * 0, which is NaN for an infinite x.  Every
right side depends on what its left side depends on, and has the same derivative.

Derivatives are full of the left sides: that of x ** 2 is 2 x ** 1, that of a difference negates a
cotangent before it is added, and the transpose of a sum is an expansion.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import callee_of, computes_tensor, tensor_of
from adjoint.optimize.uniform import uniform_value
from adjoint.optimize.views import is_known_to_expand
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call, one_of
from adjoint.rewrite.refreshing import same_values
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
x, y, c = Wildcard("x"), Wildcard("y"), Wildcard("c")

ADD, SUB, NEG, MUL = aten.add.Tensor, aten.sub.Tensor, aten.neg.default, aten.mul.Tensor
PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)


def _stands_for(value: object, root: fx.Node) -> Replacement | None:
    """`value`, if it is a tensor of the shape and dtype of `root`; else None."""
    if not isinstance(value, fx.Node) or not computes_tensor(value):
        return None
    return value if same_values(tensor_of(value), tensor_of(root), False) else None


def _is(argument: object, number: float) -> bool:
    """Whether an argument is this number, or a tensor of it everywhere; zeros by their sign."""
    value = uniform_value(argument)
    return isinstance(value, (int, float)) and repr(float(value)) == repr(float(number))


@rewrites(call(PRODUCTS, x, y))
def drop_factor_one(x: object, y: object, match: Match) -> Replacement | None:
    """x * 1 = 1 * x = x"""
    if _is(y, 1):
        return _stands_for(x, match.root)
    return _stands_for(y, match.root) if _is(x, 1) else None


@rewrites(one_of(call(QUOTIENTS, x, y), call(aten.pow.Tensor_Scalar, x, y)))
def drop_one(x: object, y: object, match: Match) -> Replacement | None:
    """x / 1 = x ** 1 = x"""
    return _stands_for(x, match.root) if _is(y, 1) else None


@rewrites(call((ADD, SUB, aten.add.Scalar, aten.sub.Scalar), x, y))
def drop_zero(x: object, y: object, match: Match) -> Replacement | None:
    """x - 0 = x + (-0.0) = x, and x + 0 = x for integers"""
    if not isinstance(x, fx.Node) or not computes_tensor(x):
        return None
    is_sum = match.root.target in (ADD, aten.add.Scalar)
    is_exact = tensor_of(x).dtype.is_floating_point or tensor_of(x).dtype.is_complex
    if is_sum and not (_is(y, -0.0) or (_is(y, 0) and not is_exact)):
        return None
    if not is_sum and not _is(y, 0):
        return None
    return _stands_for(x, match.root)


@rewrites(call(NEG, call(NEG, x, shared=True)))
def merge_negations(x: fx.Node) -> Replacement | None:
    """-(-x) = x"""
    return x


@rewrites(
    one_of(
        call(ADD, x, call(NEG, y)),
        call(ADD, call(NEG, y), x),
    )
)
def subtract(x: object, y: object) -> Replacement | None:
    """x + (-y) = x - y"""
    return call(SUB, x, y) if isinstance(x, fx.Node) else None


@rewrites(call(SUB, x, call(NEG, y)))
def add(x: object, y: object) -> Replacement | None:
    """x - (-y) = x + y"""
    return call(ADD, x, y) if isinstance(x, fx.Node) else None


@rewrites(one_of(call(NEG, call(PRODUCTS, x, c)), call(PRODUCTS, call(NEG, x), c)))
def negate_constant(x: object, c: object) -> Replacement | None:
    """-(x * c) = (-x) * c = x * (-c)"""
    if not isinstance(c, float) or not isinstance(x, fx.Node) or not _are_real(x):
        return None
    return call(MUL, x, -c)


def _are_real(*values: fx.Node) -> bool:
    return all(tensor_of(each).dtype.is_floating_point for each in values)


POINTWISE = (ADD, SUB, MUL, aten.div.Tensor)


@rewrites(call(POINTWISE, call(aten.expand.default, x, ..., shared=True), y, ...))
def broadcast_left(x: fx.Node, y: object, match: Match) -> Replacement | None:
    """expand(x) op y = x op y, where y has the whole shape"""
    return _broadcast(match, 0, x, y)


@rewrites(call(POINTWISE, y, call(aten.expand.default, x, ..., shared=True), ...))
def broadcast_right(x: fx.Node, y: object, match: Match) -> Replacement | None:
    """y op expand(x) = y op x, where y has the whole shape"""
    return _broadcast(match, 1, x, y)


def _broadcast(match: Match, place: int, x: fx.Node, other: object) -> Replacement | None:
    if not isinstance(other, fx.Node) or not computes_tensor(other):
        return None
    # A tensor without axes takes part in type promotion as a number does.
    if not tensor_of(x).dim() or match.root.kwargs:
        return None
    if len(tensor_of(other).shape) != len(tensor_of(match.root).shape):
        return None
    if not same_values(list(tensor_of(other).shape), list(tensor_of(match.root).shape)):
        return None
    if not is_known_to_expand(x, match.root):
        return None
    args = list(match.root.args)
    args[place] = x
    return call(callee_of(match.root), *args)


RULES = (
    drop_factor_one,
    drop_one,
    drop_zero,
    merge_negations,
    subtract,
    add,
    negate_constant,
    broadcast_left,
    broadcast_right,
)


def simplify_algebra(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Simplify arithmetic where that is exact in floating point."""
    return rewrite(graph_module, RULES, "simplify-algebra")
