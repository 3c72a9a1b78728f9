"""What ops cost: one table for those who save or recompute, and for those who fuse.

Costs are counted in operators of the loop language for each element.  What a pointwise op applies
is read off its formula (`loops/pointwise.py`); only what has no formula is listed here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from adjoint.graph.metadata import value_of
from adjoint.loops.expressions import Apply, Name, walk
from adjoint.loops.operators import COSTLY
from adjoint.loops.pointwise import TABLE
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

# A math function takes about as long as so many operators that are instructions.
FUNCTION_COST_IN_OPERATORS = 8

# Functions that lowering counts and partitioning does not.  A remainder takes many instructions, so
# a kernel should not compute it more often than it must; but to save one costs a store and a load
# of the whole tensor.  Draws are never recomputed: what draws is impure.
_RECOMPUTED = frozenset({"fmod", "philox"})

# Pointwise ops without a formula that take far longer than a load and a store.
_LIBRARY_FUNCTIONS = frozenset(
    {aten.digamma, aten.igamma, aten.igammac, aten.lgamma, aten.polygamma}
)

# Their derivatives are functions of their arguments, not of their results.
_ACTIVATIONS = frozenset({aten.gelu, aten.mish, aten.silu, aten.softplus})


def functions_in(operators: Iterable[str]) -> int:
    """How many of these operators are functions, each of which costs as much as several others."""
    return sum(operator in COSTLY for operator in operators)


def effort(operators: int, functions: int) -> int:
    """The cost of so many operators, of which some are functions."""
    return operators + (FUNCTION_COST_IN_OPERATORS - 1) * functions


def is_quick(node: fx.Node) -> bool:
    """A pointwise op that is cheaper to recompute than to save: it applies no long function."""
    target = node.target
    assert isinstance(target, OpOverload)
    if target.overloadpacket in _LIBRARY_FUNCTIONS:
        return False
    if _hides_behind_memory(node, target):
        return True
    args = tuple(map(_argument, node.args))
    options = tuple((name, _argument(value)) for name, value in node.kwargs.items())
    return not (_applied(target, args, options) & COSTLY) - _RECOMPUTED


def _hides_behind_memory(node: fx.Node, target: OpOverload) -> bool:
    """An activation of half-precision numbers on a GPU: computed while its argument is loaded,
    which its derivative needs anyway."""
    value = value_of(node)
    is_half = value.dtype in (torch.float16, torch.bfloat16)
    return value.device.type == "cuda" and is_half and target.overloadpacket in _ACTIVATIONS


# Stands for an element: what is applied does not depend on its type.
_ELEMENT = Name("?", torch.float32)


def _argument(value: Any) -> Any:
    is_known = value is None or isinstance(value, (bool, int, float, str))
    return value if is_known else _ELEMENT


@functools.lru_cache(maxsize=4096)
def _applied(
    target: OpOverload, args: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> frozenset[str]:
    """The operators that an op applies to each element; empty: it has no formula.

    An overload without a formula of its own has that of another overload of the op.
    """
    entry = TABLE.get(target)
    if entry is None:
        packet = target.overloadpacket
        entry = next((each for op, each in TABLE.items() if op.overloadpacket is packet), None)
        if entry is None:
            return frozenset()
        args = tuple(_ELEMENT if isinstance(each, (int, float)) else each for each in args)
    named = dict(options) | ({"result": torch.float32} if entry.typed else {})
    parts = walk(entry.formula(*args, **named))
    return frozenset(part.operator for part in parts if isinstance(part, Apply))
