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
# From here on erf is 1, and erfc nothing.
_ERF_LIMIT = {"f32": 4.0, "f64": 6.0}
_ERFC_LIMIT = {"wide": 10.2, "f64": 27.4}
_CENTRE = 4.0


def _small_erf(b: Builder, x: Value) -> Value:
    """For |x| <= 1."""
    return b.fma(x, b.polynomial(x * x, ERF[b.real.name]), x)


def erf(b: Builder, x: Value) -> Value:
    a = b.at_most(b.abs(x), _ERF_LIMIT[b.real.name])
    small = _small_erf(b, a)
    r, n = exponential.reduced(b, -b.polynomial(a, _TAIL[b.real.name]))
    # |n| < 60: one power of two will do.
    large = b.fma(exponential.exp_of_reduced(b, r), -b.power_of_two(n), 1.0)
    return b.copysign(b.select(a < 1.0, small, large), x)


def erfc(b: Builder, x: Value) -> Value:
    """exp(-a**2) times a function so smooth that it is a polynomial in (a - 4) / (a + 4)."""
    a = b.at_most(b.abs(x), _ERFC_LIMIT[b.real.name])
    inverse = 1.0 / (a + _CENTRE)
    smooth = b.polynomial(b.fma(inverse, -2.0 * _CENTRE, 1.0), _SCALED[b.real.name]) * inverse
    square = a * a
    r, n = exponential.reduced(b, -square)
    # What rounding the square lost, which would be a large relative error of the exponential.
    r = r - b.fma(a, a, -square)
    result = b.scale(exponential.exp_of_reduced(b, r) * smooth, n)
    result = b.select(x < 0.0, 2.0 - result, result)
    if b.real is not F64:
        return result
    # Near zero the polynomial is steep, and its argument's rounding would show.
    return b.select(a < 0.6, 1.0 - _small_erf(b, x), result)
