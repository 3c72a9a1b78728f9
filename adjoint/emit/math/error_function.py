"""erf and erfc."""

from adjoint.emit.math import exponential
from adjoint.emit.math.builder import F64, Builder, Value
from adjoint.emit.math.coefficients import (
    ERF,
    ERF_TAIL_F32,
    ERF_TAIL_F64,
    ERFC_F64,
    ERFC_WIDE,
)

_TAIL = {**ERF_TAIL_F32, **ERF_TAIL_F64}
_SCALED = {**ERFC_WIDE, **ERFC_F64}
# Beyond these erf is 1, and erfc is 0.
_ERF_LIMIT = {"f32": 4.0, "f64": 6.0}
_ERFC_LIMIT = {"wide": 10.2, "f64": 27.4}
_CENTRE, _MIDDLE = 2.0, 0.25
# The derivative of exp(x**2) erfc(x) with respect to 1 / (x + 2): a line, accurate to a sixth.
_SLOPE = (0.4, 6.0)


def _small_erf(b: Builder, x: Value) -> Value:
    """For |x| <= 1."""
    return b.fma(x, b.polynomial(x * x, ERF[b.real.name]), x)


def erf(b: Builder, x: Value) -> Value:
    a = b.at_most(b.abs(x), _ERF_LIMIT[b.real.name])
    small = _small_erf(b, a)
    tail = [-c for c in _TAIL[b.real.name]]
    r, n = exponential.reduced(b, b.polynomial(a, tail), b.real.bias)
    # |n| < 60: one power of two will do.
    large = b.fma(exponential.exp_of_reduced(b, r), -b.power_of_field(n), 1.0)
    return b.copysign(b.select(a < 1.0, small, large), x)


def _scaled_erfc(b: Builder, a: Value) -> Value:
    """exp(a**2) erfc(a), a smooth function of 1 / (a + 2)."""
    below = a + _CENTRE
    inverse = 1.0 / below
    offset = inverse - _MIDDLE
    first, *others = _SCALED[b.real.name]
    rest = b.polynomial(offset, others)
    smooth = b.fma(offset, rest, first)
    if b.real is not F64:
        return inverse * smooth
    # The rounding errors of the inverse, times the slope, which may be rough, and of the last sum.
    by_inverse = b.fma(inverse, -(a - (below - _CENTRE)), b.fma(inverse, -below, 1.0)) * inverse
    by_sum = b.fma(offset, rest, first - smooth)
    lost = b.fma(inverse, by_sum, by_inverse * b.fma(inverse, _SLOPE[1], _SLOPE[0]))
    return b.fma(inverse, smooth, lost)


def erfc(b: Builder, x: Value) -> Value:
    a = b.at_most(b.abs(x), _ERFC_LIMIT[b.real.name])
    square = a * a
    # The rounding error of the square would be a large relative error of the exponential.
    lost = -b.fma(a, a, -square)
    r, n = exponential.reduced(b, -square, 2 * b.real.bias, lost)
    result = b.scale(exponential.exp_times(b, r, _scaled_erfc(b, a)), n)
    result = b.select(x < 0.0, 2.0 - result, result)
    if b.real is not F64:
        return result
    return b.select(a < 0.6, 1.0 - _small_erf(b, x), result)
