"""The operators of loop expressions: their arity, their result type, and what they compute.

Integer arithmetic wraps.  `div` is floating-point division; `floordiv` and `mod` round as Python's
do, `quotient` and `fmod` as C's.  Integer division by zero does not fail, and its result is
arbitrary: kernels that divide exclude it.  `within(index, size)` is the index, and fails if it is
not in range(size).  `philox(key, high, low, half)` is one half of the 128 random bits of a key and
a counter: the first if `half` is 0, else the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from adjoint.open_types import Scalar
from adjoint.philox import halves


@dataclass(frozen=True)
class Operator:
    arity: int
    meaning: Callable[..., Scalar]
    """What it computes of scalars that have the dtype already."""
    is_predicate: bool = False

    def result(self, dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
        """The dtype of the result: that of the arguments, or bool for predicates.

        All arguments have one dtype, except the condition of `select`.
        """
        if len(dtypes) != self.arity:
            raise TypeError(f"{self.arity} arguments expected, {len(dtypes)} given")
        same = dtypes[1:] if self.arity == 3 else dtypes
        if len(set(same)) != 1 or (self.arity == 3 and dtypes[0] != torch.bool):
            raise TypeError(f"arguments of types {', '.join(map(str, dtypes))}")
        return torch.bool if self.is_predicate else same[0]


def _in_double(name: str) -> Callable[..., Scalar]:
    """A function of torch, computed in double precision and rounded to the argument's type."""

    def meaning(*args: Scalar) -> Scalar:
        kind = type(args[0])
        exact = [torch.tensor(float(a), dtype=torch.float64, device="cpu") for a in args]
        function = getattr(torch, name, None) or getattr(torch.special, name)
        return kind(function(*exact).item())

    return meaning


def _rounding(function: Callable[[Scalar], Scalar]) -> Callable[[Scalar], Scalar]:
    """A rounding function; integers are unchanged, however large."""
    return lambda a: function(a) if isinstance(a, np.floating) else a


def _minimum(a: Scalar, b: Scalar) -> Scalar:
    return a if a != a or a < b else b


def _maximum(a: Scalar, b: Scalar) -> Scalar:
    return a if a != a or a > b else b


def _wrapped(value: int, like: Scalar) -> Scalar:
    """`value` wrapped to the integer type of `like`."""
    kind = np.dtype(type(like))
    bits = 8 * kind.itemsize
    value &= (1 << bits) - 1
    return kind.type(value - (1 << bits) if kind.kind == "i" and value >> (bits - 1) else value)


def _floordiv(a: Scalar, b: Scalar) -> Scalar:
    return _wrapped(int(a) // int(b or 1), a)


def _mod(a: Scalar, b: Scalar) -> Scalar:
    return _wrapped(int(a) % int(b or 1), a)


def _quotient(a: Scalar, b: Scalar) -> Scalar:
    """Rounded towards zero, as in C."""
    whole = abs(int(a)) // abs(int(b or 1))
    return _wrapped(whole if (a < 0) == (b < 0) else -whole, a)


def _fmod(a: Scalar, b: Scalar) -> Scalar:
    """The remainder of `quotient`."""
    if isinstance(a, np.floating):
        return np.fmod(a, b)
    rest = abs(int(a)) % abs(int(b or 1))
    return _wrapped(-rest if a < 0 else rest, a)


def _shift_left(a: Scalar, b: Scalar) -> Scalar:
    """A shift by the width of the type or more gives zero."""
    bits = 8 * np.dtype(type(a)).itemsize
    return _wrapped(int(a) << int(b) if 0 <= b < bits else 0, a)


def _shift_right(a: Scalar, b: Scalar) -> Scalar:
    """A shift by the width of the type or more leaves only the sign."""
    kind = np.dtype(type(a))
    most = 8 * kind.itemsize - (kind.kind == "i")
    return _wrapped(int(a) >> (int(b) if 0 <= b < most else most), a)


_MATH = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid"),
    *("erf", "erfc", "erfinv"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)


def _within(index: Scalar, size: Scalar) -> Scalar:
    if not 0 <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension with size {size}")
    return index


def _philox(key: Scalar, high: Scalar, low: Scalar, half: Scalar) -> Scalar:
    drawn = halves(int(key), int(high), int(low))
    return _wrapped(drawn[1 if half else 0], key)


OPERATORS: dict[str, Operator] = {
    "add": Operator(2, lambda a, b: a + b),
    "sub": Operator(2, lambda a, b: a - b),
    "mul": Operator(2, lambda a, b: a * b),
    "div": Operator(2, lambda a, b: a / b),
    "fmod": Operator(2, _fmod),
    "quotient": Operator(2, _quotient),
    "floordiv": Operator(2, _floordiv),
    "mod": Operator(2, _mod),
    "minimum": Operator(2, _minimum),
    "maximum": Operator(2, _maximum),
    "and": Operator(2, lambda a, b: a & b),
    "or": Operator(2, lambda a, b: a | b),
    "xor": Operator(2, lambda a, b: a ^ b),
    "shift_left": Operator(2, _shift_left),
    "shift_right": Operator(2, _shift_right),
    "eq": Operator(2, lambda a, b: a == b, is_predicate=True),
    "ne": Operator(2, lambda a, b: a != b, is_predicate=True),
    "lt": Operator(2, lambda a, b: a < b, is_predicate=True),
    "le": Operator(2, lambda a, b: a <= b, is_predicate=True),
    "gt": Operator(2, lambda a, b: a > b, is_predicate=True),
    "ge": Operator(2, lambda a, b: a >= b, is_predicate=True),
    "within": Operator(2, _within),
    "select": Operator(3, lambda condition, a, b: a if condition else b),
    "neg": Operator(1, lambda a: -a),
    "not": Operator(1, lambda a: ~a if not isinstance(a, (bool, np.bool_)) else not a),
    "abs": Operator(1, abs),
    "sqrt": Operator(1, np.sqrt),
    "floor": Operator(1, _rounding(np.floor)),
    "ceil": Operator(1, _rounding(np.ceil)),
    "trunc": Operator(1, _rounding(np.trunc)),
    "round": Operator(1, _rounding(np.rint)),
    "copysign": Operator(2, np.copysign),
    "philox": Operator(4, _philox),
    "pow": Operator(2, _in_double("pow")),
    "atan2": Operator(2, _in_double("atan2")),
    **{name: Operator(1, _in_double(name)) for name in _MATH},
}

# Functions of the math library: calls, not instructions.
MATH = frozenset({*_MATH, "pow", "atan2", "fmod"})

# Operators of many instructions: their results are kept rather than recomputed.
COSTLY = MATH | {"philox"}


def identity(operator: str, dtype: torch.dtype) -> float | int | bool:
    """The value e with operator(e, x) = x for every x."""
    match operator:
        case "add" | "or" | "xor":
            # Negative zero, since 0.0 + -0.0 is 0.0.
            return -0.0 if dtype.is_floating_point else 0
        case "mul":
            return 1
        case "and":
            return -1 if dtype != torch.bool else True
        case "minimum" | "maximum":
            sign = 1 if operator == "minimum" else -1
            if dtype.is_floating_point:
                return sign * float("inf")
            if dtype == torch.bool:
                return operator == "minimum"
            limits = torch.iinfo(dtype)
            return limits.max if sign > 0 else limits.min
        case _:
            raise ValueError(f"{operator} has no identity")
