"""The costs of ops: for the partition, which saves or recomputes, and for fusion.

The cost of an op is the number of operators of the loop language for each element, read off the
formula of a pointwise op (`loops/pointwise.py`).  Only ops without a formula are listed here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from adjoint.dtypes import HALVES
from adjoint.graph.metadata import computes_tensor, value_of, value_or_none
from adjoint.loops.expressions import Apply, Name, walk
from adjoint.loops.operators import COSTLY
from adjoint.loops.pointwise import TABLE
from adjoint.target import Rates
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import hint

aten = torch.ops.aten

# A matrix product with a dimension of at most this size is computed by loops, which fuse with
# others; other products are library calls.
MAX_SHORT_DIMENSION = 4

# A math function takes about as long as this many operators that are single instructions.
FUNCTION_COST_IN_OPERATORS = 8

# Functions that count as costly for lowering, but not for the partition.  A remainder takes many
# instructions, so a kernel should not compute it twice; but recomputing it costs less than a store
# and a load.  Random draws are impure, so the partition never recomputes them.
_RECOMPUTED = frozenset({"fmod", "philox"})

# Pointwise ops without a formula that take far longer than a load and a store.
_LIBRARY_FUNCTIONS = frozenset(
    {aten.digamma, aten.igamma, aten.igammac, aten.lgamma, aten.polygamma}
)

# Activations whose derivatives are functions of the argument, not of the result.
_ACTIVATIONS = frozenset({aten.gelu, aten.mish, aten.silu, aten.softplus})


def functions_in(operators: Iterable[str]) -> int:
    """How many of these operators are costly math functions."""
    return sum(operator in COSTLY for operator in operators)


def effort(operators: int, functions: int) -> int:
    """The cost of `operators` operators, of which `functions` are costly math functions."""
    return operators + (FUNCTION_COST_IN_OPERATORS - 1) * functions


@dataclass(frozen=True)
class Cost:
    """What computing something takes, for the sizes of the call that was captured."""

    flops: int = 0
    """Multiplications and additions of products and convolutions, and operators of formulas."""
    bytes: int = 0
    """What is read and written, if nothing is fused."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def seconds(self, rates: Rates) -> float:
        """The time at nominal rates, whichever takes longer: arithmetic, or memory traffic."""
        return max(self.flops / rates.operators_per_second, self.bytes / rates.bytes_per_second)


def cost_of(node: fx.Node) -> Cost:
    """The cost of one node; views and sizes are free."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or target.is_view:
        return Cost()
    results = [leaf for leaf in trees.leaves(value_of(node)) if isinstance(leaf, torch.Tensor)]
    values = fx.map_arg((node.args, node.kwargs), value_or_none)
    tensors = [leaf for leaf in trees.leaves(values) if isinstance(leaf, torch.Tensor)]
    traffic = sum(_count(each) * each.dtype.itemsize for each in (*results, *tensors))
    counted = flop_registry.get(target.overloadpacket)
    if counted is not None:
        args, kwargs = values
        return Cost(hint(counted(*args, **kwargs, out_val=value_of(node))), traffic)
    operators = FUNCTION_COST_IN_OPERATORS if _is_pointwise(node) and not is_quick(node) else 1
    return Cost(operators * max(map(_count, (*results, *tensors)), default=0), traffic)


def seconds_of(graph: fx.Graph, rates: Rates) -> float:
    """The time of a graph at nominal rates, as kernels fuse it.

    The result of a pointwise op is stored only for readers that are not pointwise.
    """
    return sum(_fused_cost(node).seconds(rates) for node in graph.nodes)


def _fused_cost(node: fx.Node) -> Cost:
    cost = cost_of(node)
    if not _is_pointwise(node):
        return cost
    is_stored = not all(map(_is_pointwise, node.users))
    value = value_of(node)
    return Cost(cost.flops, _count(value) * value.dtype.itemsize if is_stored else 0)


def _is_pointwise(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    return torch.Tag.pointwise in target.tags and computes_tensor(node)


def _count(tensor: torch.Tensor) -> int:
    return math.prod(hint(size) for size in tensor.shape)


def is_quick(node: fx.Node) -> bool:
    """Whether a pointwise op applies no costly function, and so is cheaper to recompute."""
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
    """Whether memory latency hides the cost: of an activation in half precision on a GPU.

    Its derivative loads the argument anyway, and the activation is computed meanwhile.
    """
    value = value_of(node)
    is_half = value.dtype in HALVES
    return value.device.type == "cuda" and is_half and target.overloadpacket in _ACTIVATIONS


# A placeholder for any element: the operators applied do not depend on its dtype.
_ELEMENT = Name("?", torch.float32)


def _packet(op: object) -> object:
    return op.overloadpacket if isinstance(op, OpOverload) else None


def _argument(value: object) -> object:
    is_known = value is None or isinstance(value, (bool, int, float, str))
    return value if is_known else _ELEMENT


@functools.lru_cache(maxsize=4096)
def _applied(
    target: OpOverload, args: tuple[object, ...], options: tuple[tuple[str, object], ...]
) -> frozenset[str]:
    """The operators that an op applies to each element; empty: it has no formula.

    An overload without a formula of its own has that of another overload of the op.
    """
    entry = TABLE.get(target)
    if entry is None:
        packet = target.overloadpacket
        entry = next((each for op, each in TABLE.items() if _packet(op) is packet), None)
        if entry is None:
            return frozenset()
        args = tuple(_ELEMENT if isinstance(each, (int, float)) else each for each in args)
    named = dict(options) | ({"result": torch.float32} if entry.typed else {})
    parts = walk(entry.formula(*args, **named))
    return frozenset(part.operator for part in parts if isinstance(part, Apply))
