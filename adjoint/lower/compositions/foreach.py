"""Operators on lists of tensors: the operator on each of them.

    _foreach_add([a, b], [c, d]) = [a + c, b + d]

Optimizers update all parameters by them.  Written out, the updates of a parameter are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import COMPOSITIONS, NoComposition
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

_AS_NAMED = (
    *("abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min"),
    *("clone", "cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp"),
    *("lgamma", "log", "log10", "log1p", "log2", "mul", "neg", "pow"),
    *("reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan"),
    *("tanh", "trunc"),
)


def _maximum(x: Tensor, bound: Tensor | float) -> Tensor:
    return torch.maximum(x, bound) if isinstance(bound, Tensor) else torch.clamp_min(x, bound)


def _minimum(x: Tensor, bound: Tensor | float) -> Tensor:
    return torch.minimum(x, bound) if isinstance(bound, Tensor) else torch.clamp_max(x, bound)


def _with_factor(
    function: Callable[..., Tensor], x: Tensor, one: Tensor, other: Tensor, value: object = 1
) -> Tensor:
    """A function whose last argument is a keyword; a tensor of all factors stays a tensor."""
    if isinstance(value, Tensor):
        raise NoComposition
    return function(x, one, other, value=value)


# By the name after `_foreach_`: what is done with each tensor.
ON_EACH: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _AS_NAMED},
    "addcdiv": partial(_with_factor, torch.addcdiv),
    "addcmul": partial(_with_factor, torch.addcmul),
    "copy": aten.copy.default,
    "maximum": _maximum,
    "minimum": _minimum,
    "norm": torch.linalg.vector_norm,
    "zero": torch.zeros_like,
}


def _each(on_each: Callable[..., Tensor], *args: object, **kwargs: object) -> list[Tensor]:
    """The results for the first elements of all lists, for the second ones, and so on."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
    counts = {len(value) for value in given}
    if len(counts) != 1:
        raise NoComposition

    def at(place: int, value: object) -> object:
        return value[place] if isinstance(value, (list, tuple)) else value

    return [
        on_each(
            *(at(place, value) for value in args),
            **{name: at(place, value) for name, value in kwargs.items()},
        )
        for place in range(counts.pop())
    ]


def _overloads(name: str) -> list[OpOverload]:
    packet = getattr(aten, f"_foreach_{name}", None)
    every: list[OpOverload] = (
        [getattr(packet, each) for each in packet.overloads()] if packet else []
    )
    return [each for each in every if not each._schema.is_mutable]


for _name, _function in ON_EACH.items():
    COMPOSITIONS.update(dict.fromkeys(_overloads(_name), partial(_each, _function)))
