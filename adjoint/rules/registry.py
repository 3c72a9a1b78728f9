"""The table of derivative rules.

A rule is a vector-Jacobian product, written in ordinary torch:

    @vjp(aten.sum.dim_IntList)
    def sum_dim(cotangent, out, x, dim, keepdim=False, **_):
        return (restore_axes(cotangent, x, dim, keepdim).expand(x.shape),)

It is given the cotangent of the result, the result, and the call's arguments, and returns one
cotangent for each argument (None: no derivative; fewer: None for the rest; a function of nothing:
called if the argument is of interest).  An op with several results gets tuples, in which a
cotangent that is zero is None.  Sums over broadcast axes, dtypes, zeros and accumulation are the
sweep's business, never a rule's.

What a rule emits is differentiated by the rules of what it emits: order n needs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from adjoint.torch_private.operators import OpOverload

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)

VJPS: dict[Any, Rule] = {}
COMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""For an op without a derivative of its own: the same value as a composition of ops that have
one.
"""
NON_DIFFERENTIABLE: set[Any] = set()
"""Piecewise constant, or defined to have no derivative: every cotangent is zero."""


def vjp(*ops: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register the rule of `ops`."""

    def register(rule: RuleT) -> RuleT:
        for op in ops:
            VJPS[op] = rule
        return rule

    return register


def composition(*ops: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register what `ops` compute, as a composition of differentiable ops."""

    def register(function: RuleT) -> RuleT:
        for op in ops:
            COMPOSITIONS[op] = function
        return function

    return register


def vjp_rule(op: OpOverload) -> Callable[[RuleT], RuleT]:
    """Add a rule for an op, or replace the one there is.

    @adjoint.vjp_rule(torch.ops.mylib.spline.default)
    def spline_vjp(cotangent, out, x, knots):
        return cotangent * spline_slope(x, knots), None
    """
    return vjp(op)
