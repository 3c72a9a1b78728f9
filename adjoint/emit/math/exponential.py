"""exp, exp2, expm1 and sigmoid: x = n ln 2 + r, and exp(x) = 2**n exp(r)."""

from adjoint.emit.math.builder import F32, F64, WIDE, Builder, Value
from adjoint.emit.math.coefficients import EXP, EXPM1, LN2, LOG2_E

# Beyond these exp is infinite or zero in the type itself, not only after rounding to float.
EXP_RANGE = {F32.name: (-105.0, 89.5), F64.name: (-746.0, 710.5), WIDE.name: (-746.0, 710.5)}
SIGMOID_RANGE = {F32.name: (-104.5, 50.0), F64.name: (-746.0, 50.0)}
EXPM1_RANGE = {F32.name: (-50.0, 88.8), F64.name: (-50.0, 709.9)}
EXP2_RANGE = {F32.name: (-151.0, 129.0), F64.name: (-1076.0, 1025.0)}


def _clamped(b: Builder, x: Value, bounds: tuple[float, float]) -> Value:
    return b.at_most(b.at_least(x, bounds[0]), bounds[1])


def reduced(b: Builder, x: Value, plus: int, rest: Value | None = None) -> tuple[Value, Value]:
    """r with x + rest = n ln 2 + r, and an integer that ends in n + plus."""
    turns, n = b.nearest(x, LOG2_E[b.real.name][0], plus)
    high, low = LN2[b.real.name]
    near = b.fma(turns, -high, x)
    return b.fma(turns, -low, near) if rest is None else near + b.fma(turns, -low, rest), n


def exp_of_reduced(b: Builder, r: Value) -> Value:
    return b.fma(b.fma(b.polynomial(r, EXP[b.real.name]), r, 1.0), r, 1.0)


def exp_times(b: Builder, r: Value, factor: Value) -> Value:
    """exp(r) * factor, without rounding exp(r) itself."""
    tail = b.fma(b.polynomial(r, EXP[b.real.name]), r, 1.0) * r
    return b.fma(tail, factor, factor)


def expm1_of_reduced(b: Builder, r: Value) -> Value:
    return b.fma(r * r, b.polynomial(r, EXPM1[b.real.name]), r)


def exp(b: Builder, x: Value) -> Value:
    r, n = reduced(b, _clamped(b, x, EXP_RANGE[b.real.name]), 2 * b.real.bias)
    return b.scale(exp_of_reduced(b, r), n)


def exp2(b: Builder, x: Value) -> Value:
    x = _clamped(b, x, EXP2_RANGE[b.real.name])
    turns, n = b.nearest(x, plus=2 * b.real.bias)
    return b.scale(exp_of_reduced(b, (x - turns) * sum(LN2[b.real.name])), n)


def expm1(b: Builder, x: Value) -> Value:
    """2**n (exp(r) - 1) + (2**n - 1), at half size so that 2**n does not overflow."""
    r, n = reduced(b, _clamped(b, x, EXPM1_RANGE[b.real.name]), b.real.bias - 1)
    half = b.power_of_field(n)
    result = b.fma(half, expm1_of_reduced(b, r), half - 0.5) * 2.0
    # Halving loses bits of a subnormal and the sign of zero; there the result is x.
    return b.select(b.abs(x) < b.real.epsilon / 4, x, result)


def sigmoid(b: Builder, x: Value) -> Value:
    """2**n / (2**n + exp(-r)), both sides times a power that keeps the first one normal."""
    margin = b.real.mantissa_bits + 1
    r, n = reduced(b, _clamped(b, x, SIGMOID_RANGE[b.real.name]), b.real.bias + margin)
    power = b.power_of_field(n)
    # exp(-r) 2**margin: its coefficients are scaled, at no cost, and its 1 is added to the power.
    unit = 2.0**margin
    tail = b.polynomial(r, [c * unit * (-1.0) ** k for k, c in enumerate(EXP[b.real.name])])
    slope = b.fma(tail, r, -unit)
    ones = power + unit
    if b.real is F64:
        return power / b.fma(slope, r, ones)
    # The rounding error of that sum, which matters in float where the power is the unit's last bit.
    lost = power - (ones - unit)
    return power / (b.fma(slope, r, lost) + ones)
