"""The operators of loop expressions: their arity, their result type, and what they mean.

Meanings are over numbers that have the dtype already (`numpy` scalars in the evaluator).  Integer
arithmetic wraps; `div` is exact division of floating-point numbers, `floordiv` and `mod` round as
Python's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Operator:
    arity: int
    meaning: Callable[..., Any]
    is_predicate: bool = False

    def result(self, dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
        """Arguments have one dtype, which is the result's, but for predicates and conditions."""
        if len(dtypes) != self.arity:
            raise TypeError(f"{self.arity} arguments expected, {len(dtypes)} given")
        same = dtypes[1:] if self.arity == 3 else dtypes
        if len(set(same)) != 1 or (self.arity == 3 and dtypes[0] != torch.bool):
            raise TypeError(f"arguments of types {', '.join(map(str, dtypes))}")
        return torch.bool if self.is_predicate else same[0]


def _library(name: str) -> Callable[..., Any]:
    """What the math library of the machine gives, rounded to the argument's own type."""

    def meaning(*args: Any) -> Any:
        kind = type(args[0])
        exact = [torch.tensor(float(a), dtype=torch.float64) for a in args]
        function = getattr(torch, name, None) or getattr(torch.special, name)
        return kind(function(*exact).item())

    return meaning


def _minimum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else min(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else max(a, b)


def _floordiv(a: Any, b: Any) -> Any:
    return type(a)(int(a) // int(b)) if b else type(a)(0)


def _mod(a: Any, b: Any) -> Any:
    return type(a)(int(a) % int(b)) if b else type(a)(0)


def _quotient(a: Any, b: Any) -> Any:
    """Rounded to zero, as C's."""
    return type(a)(math.trunc(int(a) / int(b))) if b else type(a)(0)


_MATH = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)

OPERATORS: dict[str, Operator] = {
    "add": Operator(2, lambda a, b: a + b),
    "sub": Operator(2, lambda a, b: a - b),
    "mul": Operator(2, lambda a, b: a * b),
    "div": Operator(2, lambda a, b: a / b),
    "fmod": Operator(2, np.fmod),
    "quotient": Operator(2, _quotient),
    "floordiv": Operator(2, _floordiv),
    "mod": Operator(2, _mod),
    "minimum": Operator(2, _minimum),
    "maximum": Operator(2, _maximum),
    "and": Operator(2, lambda a, b: a & b),
    "or": Operator(2, lambda a, b: a | b),
    "xor": Operator(2, lambda a, b: a ^ b),
    "shift_left": Operator(2, lambda a, b: a << b),
    "shift_right": Operator(2, lambda a, b: a >> b),
    "eq": Operator(2, lambda a, b: a == b, is_predicate=True),
    "ne": Operator(2, lambda a, b: a != b, is_predicate=True),
    "lt": Operator(2, lambda a, b: a < b, is_predicate=True),
    "le": Operator(2, lambda a, b: a <= b, is_predicate=True),
    "gt": Operator(2, lambda a, b: a > b, is_predicate=True),
    "ge": Operator(2, lambda a, b: a >= b, is_predicate=True),
    "select": Operator(3, lambda condition, a, b: a if condition else b),
    "neg": Operator(1, lambda a: -a),
    "not": Operator(1, lambda a: ~a if not isinstance(a, (bool, np.bool_)) else not a),
    "abs": Operator(1, abs),
    "sqrt": Operator(1, np.sqrt),
    "floor": Operator(1, np.floor),
    "ceil": Operator(1, np.ceil),
    "trunc": Operator(1, np.trunc),
    "round": Operator(1, np.rint),
    "copysign": Operator(2, np.copysign),
    "fma": Operator(3, lambda a, b, c: a * b + c),
    "pow": Operator(2, _library("pow")),
    "atan2": Operator(2, _library("atan2")),
    **{name: Operator(1, _library(name)) for name in _MATH},
}

# The functions that are no instruction of any machine.
MATH = frozenset({*_MATH, "pow", "atan2", "fmod"})
