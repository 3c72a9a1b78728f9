"""The table of derivative rules.

A rule is a vector-Jacobian product, written in ordinary torch:

    @vjp(aten.sum.dim_IntList)
    def sum_dim(cotangent, out, x, dim, keepdim=False, **_):
        return (restore_axes(cotangent, x, dim, keepdim).expand(x.shape),)

It is given the cotangent of the result, the result, and the call's arguments, and returns one
cotangent for each argument:

- None: the argument has no derivative; missing entries at the end mean the same;
- a function without parameters: called only if the cotangent of that argument is needed.

For an op with several results, cotangent and result are tuples; a cotangent that is zero is None.
Sums over broadcast axes, dtypes, zeros and accumulation are handled by the sweep, never by a rule.

The ops that a rule emits have rules of their own, so higher orders need nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from torch import Tensor

from adjoint.open_types import Callee
from adjoint.torch_private.operators import OpOverload, named_arguments

Cotangent: TypeAlias = Tensor | Callable[[], Tensor] | None
Cotangents: TypeAlias = tuple[Cotangent | Sequence[Cotangent], ...]
"""What a rule returns: one for each argument, a sequence for a list of tensors."""

Rule: TypeAlias = Callee
RuleT = TypeVar("RuleT", bound=Rule)

VJPS: dict[object, Rule] = {}
COMPOSITIONS: dict[object, Callee] = {}
"""For an op without a VJP: the same value, computed by differentiable ops."""
NON_DIFFERENTIABLE: set[object] = set()
"""Piecewise constant, or defined to have no derivative: every cotangent is zero."""


USER_RULES: set[object] = set()
"""Ops whose rule is the user's own."""


def vjp(*ops: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register the only rule of `ops`."""
    return _registered(VJPS, ops)


def composition(*ops: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register what `ops` compute, as a composition of differentiable ops."""
    return _registered(COMPOSITIONS, ops)


def _registered(table: dict[object, Callee], ops: Sequence[OpOverload]) -> Callable[[RuleT], RuleT]:
    def register(function: RuleT) -> RuleT:
        for op in ops:
            assert op not in table, f"{op} is registered twice"
            table[op] = function
        return function

    return register


def composition_by_name(*ops: OpOverload) -> Callable[[RuleT], RuleT]:
    """As `composition`, but all arguments except the first are passed by their schema names.

    For fused kernels with long argument lists, of which a composition uses a few.
    """

    def register(function: RuleT) -> RuleT:
        for op in ops:
            composition(op)(_by_name(op, function))
        return function

    return register


def _by_name(op: OpOverload, function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        (_, first), *rest = named_arguments(op, args, kwargs).items()
        return function(first, **dict(rest))

    return run


def vjp_rule(op: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register the rule of an op, replacing any other.

    @adjoint.vjp_rule(torch.ops.mylib.spline.default)
    def spline_vjp(cotangent, out, x, knots):
        return cotangent * spline_slope(x, knots), None

        >>> import torch, adjoint
        >>> @torch.library.custom_op("mylib::triple", mutates_args=())
        ... def triple(x: torch.Tensor) -> torch.Tensor:
        ...     return 3 * x
        >>> _ = triple.register_fake(torch.empty_like)
        >>> @adjoint.vjp_rule(torch.ops.mylib.triple.default)
        ... def triple_vjp(cotangent, out, x):
        ...     return (3 * cotangent,)
        >>> adjoint.grad(lambda x: triple(x).sum())(torch.ones(2))
        tensor([3., 3.])
    """

    def register(rule: RuleT) -> RuleT:
        VJPS[op] = rule
        USER_RULES.add(op)
        return rule

    return register
