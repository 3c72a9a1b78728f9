"""Softmax written out, as one operator.

    exp(x - max(x)) / sum(exp(x - max(x)))        = softmax(x)
    x - max(x) - log(sum(exp(x - max(x))))        = log_softmax(x)
    softmax(x - max(x))                           = softmax(x)

The operator subtracts the maximum by itself, and its derivative needs its result alone.  Attention
around it is found by `fuse-attention`.  Without the maximum, what is written out overflows where
the operator does not, and is left as it is.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from adjoint.graph.metadata import tensor_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Wildcard, call, one_of
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
SOFTMAX, LOG_SOFTMAX = aten._softmax.default, aten._log_softmax.default
DETACH, SUB = aten.detach.default, aten.sub.Tensor

x, axis, axes, summed = map(Wildcard, ("x", "axis", "axes", "summed"))
_AMAX = call(aten.amax.default, x, axes, True, shared=True)
_MAX = call(operator.getitem, call(aten.max.dim, x, axes, True, shared=True), 0, shared=True)
# No gradient flows through the maximum: the result does not depend on what is subtracted.
HIGHEST = one_of(_AMAX, _MAX, *(call(DETACH, each, shared=True) for each in (_AMAX, _MAX)))
SHIFTED = call(SUB, x, HIGHEST, shared=True)
POWER = call(aten.exp.default, SHIFTED)
TOTAL = call(aten.sum.dim_IntList, POWER, summed, True)


def _is_axis(of: fx.Node, axis: object, *others: object) -> bool:
    """Whether all are one axis of a tensor of floating-point numbers."""
    value = tensor_of(of)
    given = [
        each[0] if isinstance(each, (list, tuple)) and len(each) == 1 else each for each in others
    ]
    if not value.is_floating_point() or not value.dim() or not isinstance(axis, int):
        return False
    rank = value.dim()
    return all(isinstance(each, int) and each % rank == axis % rank for each in given)


@rewrites(call((SOFTMAX, LOG_SOFTMAX), SHIFTED, axis, False))
def drop_maximum(x: fx.Node, axis: int, axes: object, match: Match) -> Replacement | None:
    """softmax(x - max(x)) = softmax(x)"""
    return call(match.root.target, x, axis, False) if _is_axis(x, axis, axes) else None


@rewrites(call(aten.div.Tensor, POWER, TOTAL))
def close_softmax(x: fx.Node, axes: object, summed: list[int]) -> Replacement | None:
    """exp(x - max(x)) / sum(exp(x - max(x))) = softmax(x)"""
    return call(SOFTMAX, x, summed[0], False) if _is_axis(x, summed[0], axes, summed) else None


@rewrites(call(SUB, SHIFTED, call(aten.log.default, TOTAL)))
def close_log_softmax(x: fx.Node, axes: object, summed: list[int]) -> Replacement | None:
    """x - max(x) - log(sum(exp(x - max(x)))) = log_softmax(x)"""
    return call(LOG_SOFTMAX, x, summed[0], False) if _is_axis(x, summed[0], axes, summed) else None


RULES = (drop_maximum, close_softmax, close_log_softmax)


def recognize_softmax(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace a softmax that is written out by one operator."""
    return rewrite(graph_module, RULES, "recognize-softmax")
