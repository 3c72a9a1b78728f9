"""exp, exp2, expm1 and sigmoid: x = n ln 2 + r, and exp(x) = 2**n exp(r)."""

from adjoint.emit.math.builder import F32, F64, WIDE, Builder, Value
from adjoint.emit.math.coefficients import EXP, EXPM1, LN2, LOG2_E

# Beyond these exp is infinite, or nothing, in the type itself and not only after rounding.
EXP_RANGE = {F32.name: (-105.0, 89.5), F64.name: (-746.0, 710.5), WIDE.name: (-746.0, 710.5)}
EXPM1_RANGE = {F32.name: (-50.0, 88.8), F64.name: (-50.0, 709.9)}
EXP2_RANGE = {F32.name: (-151.0, 129.0), F64.name: (-1076.0, 1025.0)}


def _clamped(b: Builder, x: Value, bounds: tuple[float, float]) -> Value:
    return b.at_most(b.at_least(x, bounds[0]), bounds[1])


def reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """r and n with x = n ln 2 + r."""
    turns, n = b.round_to_integer(x * LOG2_E[b.real.name][0])
    high, low = LN2[b.real.name]
    return b.fma(turns, -low, b.fma(turns, -high, x)), n


def exp_of_reduced(b: Builder, r: Value) -> Value:
    return b.fma(r * r, b.polynomial(r, EXP[b.real.name]), r) + 1.0


def expm1_of_reduced(b: Builder, r: Value) -> Value:
    return b.fma(r * r, b.polynomial(r, EXPM1[b.real.name]), r)


def exp(b: Builder, x: Value) -> Value:
    r, n = reduced(b, _clamped(b, x, EXP_RANGE[b.real.name]))
    return b.scale(exp_of_reduced(b, r), n)


def exp2(b: Builder, x: Value) -> Value:
    x = _clamped(b, x, EXP2_RANGE[b.real.name])
    turns, n = b.round_to_integer(x)
    return b.scale(exp_of_reduced(b, (x - turns) * sum(LN2[b.real.name])), n)


def expm1(b: Builder, x: Value) -> Value:
    """2**n (exp(r) - 1) + (2**n - 1), at half size so that 2**n does not overflow."""
    r, n = reduced(b, _clamped(b, x, EXPM1_RANGE[b.real.name]))
    half = b.power_of_two(n - 1)
    result = b.fma(half, expm1_of_reduced(b, r), half - 0.5) * 2.0
    # Halving loses bits of a subnormal and the sign of zero; there the result is x.
    return b.select(b.abs(x) < b.real.epsilon / 4, x, result)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|), which does not overflow."""
    e = exp(b, -b.abs(x))
    return b.ratio_to_sum(b.select(x < 0.0, e, 1.0), e, 1.0)
