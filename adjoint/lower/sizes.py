"""Sizes: integers, or symbolic expressions over the sizes of inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import sympy
import torch

from adjoint.loops.plan import Size as Size
from adjoint.open_types import TorchValue
from adjoint.torch_private.symbols import expression, floor_quotient

# A symbolic size of an input, where decisions need a number.
ASSUMED_SIZE = 1024


def size_of(value: TorchValue) -> Size:
    """A size of a fake tensor."""
    if isinstance(value, torch.SymInt):
        expr = expression(value)
        return int(expr) if expr.is_Integer else sympy.expand(expr)
    return int(value)


def sizes(values: Iterable[object]) -> tuple[Size, ...]:
    return tuple(value if type(value) is int else size_of(value) for value in values)


def product(values: Sequence[Size]) -> Size:
    if all(isinstance(value, int) for value in values):
        return math.prod(values)
    total: Size = 1
    for value in values:
        total = total * value
    return simplified(total)


def simplified(value: Size) -> Size:
    if isinstance(value, int):
        return value
    value = sympy.expand(value)
    return int(value) if value.is_Integer else value


def quotient(value: Size, by: Size) -> Size | None:
    """`value / by` if that is an integer for all sizes of inputs; else None."""
    if isinstance(by, int) and by == 1:
        return value
    if isinstance(value, int) and isinstance(by, int):
        return value // by if by and value % by == 0 else None
    if by == 0:
        return None
    ratio = sympy.cancel(sympy.sympify(value) / sympy.sympify(by))
    if sympy.fraction(ratio)[1] != 1:
        return None
    return simplified(ratio)


def ceiling(value: Size, by: int) -> Size:
    """`value / by`, rounded up."""
    return -(-value // by) if isinstance(value, int) else -floor_quotient(-value, by)


def is_below(value: Size, bound: Size) -> bool:
    """Whether value < bound for all sizes of inputs."""
    room = simplified(bound - value)
    return isinstance(room, int) and room > 0


def is_one(value: Size) -> bool:
    return isinstance(value, int) and value == 1


def estimate(value: Size, assumed: int = ASSUMED_SIZE) -> int:
    """A number for decisions about speed: symbolic sizes of inputs count as `assumed`."""
    if isinstance(value, int):
        return value
    return max(1, int(value.subs(dict.fromkeys(value.free_symbols, assumed))))
