"""Control flow as programs write it: an operator with bodies when captured, else what it means.

In eager torch these operators compile themselves, have no second derivative or a wrong one, and
draw other random numbers when they differentiate: the oracle is the same program in Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import map as map_operator
from torch._higher_order_ops import scan as scan_operator
from torch._higher_order_ops import while_loop as while_operator
from torch.utils import _pytree as pytree


def cond(pred: Any, true: Any, false: Any, operands: Any) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return torch.cond(pred, true, false, operands)
    return true(*operands) if pred else false(*operands)


def while_loop(condition: Any, step: Any, carried: Any) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return while_operator(condition, step, carried)
    while condition(*carried):
        carried = step(*carried)
    return tuple(carried)


def scan(combine: Any, init: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return scan_operator(combine, init, xs, dim=dim, reverse=reverse)
    carry, steps = init, []
    count = pytree.tree_leaves(xs)[0].shape[dim]
    for index in reversed(range(count)) if reverse else range(count):
        carry, step = combine(carry, pytree.tree_map(lambda x, i=index: x.select(dim, i), xs))
        steps.append(step)
    in_order = steps[::-1] if reverse else steps
    return carry, pytree.tree_map(lambda *each: _stacked(each, dim), *in_order)


def _stacked(steps: tuple[Tensor, ...], dim: int) -> Tensor:
    stacked = torch.stack(steps)
    return stacked.movedim(0, dim) if dim else stacked


def map_slices(function: Any, xs: Any) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return map_operator(function, xs)
    count = pytree.tree_leaves(xs)[0].shape[0]
    steps = [function(pytree.tree_map(lambda x, i=i: x[i], xs)) for i in range(count)]
    return pytree.tree_map(lambda *each: torch.stack(each), *steps)
