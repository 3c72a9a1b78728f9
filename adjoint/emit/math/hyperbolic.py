"""tanh, sinh, cosh and their inverses."""

from adjoint.emit.math import exponential, logarithm
from adjoint.emit.math.builder import NAN, Builder, Value
from adjoint.emit.math.coefficients import SINH

LN2 = 0.6931471805599453
# Beyond it log(2x) and log(1 + x) + log(2) round to one number.
FAR = 2.0**60

# Beyond these tanh is 1.
TANH_LIMIT = {"f32": 9.5, "f64": 20.0}


def tanh(b: Builder, x: Value) -> Value:
    """t / (t + 2) with t = exp(2x) - 1, which keeps small arguments exact."""
    a = b.at_most(b.abs(x), TANH_LIMIT[b.real.name])
    r, n = exponential.reduced(b, a + a, b.real.bias)
    s = b.power_of_field(n)
    t = b.fma(s, exponential.expm1_of_reduced(b, r), s - 1.0)
    return b.copysign(b.ratio_to_sum(t, t, 2.0), x)


def _half_exponential(b: Builder, a: Value) -> Value:
    """exp(a) / 2, which overflows where cosh(a) does."""
    top = exponential.EXP_RANGE[b.real.name][1]
    r, n = exponential.reduced(b, b.at_most(a, top), 2 * b.real.bias - 1)
    return b.scale(exponential.exp_of_reduced(b, r), n)


def sinh(b: Builder, x: Value) -> Value:
    a = b.abs(x)
    half = _half_exponential(b, a)
    z = a * a
    small = b.fma(a * z, b.polynomial(z, SINH[b.real.name]), a)
    return b.copysign(b.select(a < 1.0, small, half - 0.25 / half), x)


def cosh(b: Builder, x: Value) -> Value:
    half = _half_exponential(b, b.abs(x))
    return half + 0.25 / half


def asinh(b: Builder, x: Value) -> Value:
    """log(a + sqrt(a**2 + 1)) as log1p, or log(2a) where the square would overflow."""
    a = b.abs(x)
    square = a * a
    near = a + square / (b.sqrt(square + 1.0) + 1.0)
    return b.copysign(_log1p_or_log_of_twice(b, a, near), x)


def acosh(b: Builder, x: Value) -> Value:
    """log(x + sqrt(x**2 - 1)) as log1p of t = x - 1, or log(2x)."""
    t = x - 1.0
    near = t + b.sqrt(t * (t + 2.0))
    return b.select(x < 1.0, NAN, _log1p_or_log_of_twice(b, x, near))


def _log1p_or_log_of_twice(b: Builder, a: Value, near: Value) -> Value:
    is_far = a > FAR
    result = logarithm.log1p(b, b.select(is_far, a, near))
    return result + b.select(is_far, b.constant(LN2), b.constant(0.0))


def atanh(b: Builder, x: Value) -> Value:
    """log((1 + a) / (1 - a)) / 2 = log1p(2a / (1 - a)) / 2"""
    a = b.abs(x)
    return b.copysign(0.5 * logarithm.log1p(b, (a + a) / (1.0 - a)), x)
