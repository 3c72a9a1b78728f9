"""pow: exp2(y log2 |x|), with the product carried beyond double, and C's special cases."""

from adjoint.emit.math import exponential, logarithm
from adjoint.emit.math.builder import F64, INFINITY, NAN, Builder, Value
from adjoint.emit.math.coefficients import ATANH_TAIL, LN2, LOG2_E, THIRD
from adjoint.emit.math.pairs import Pair, ordered_sum, times, two_product, two_sum

# Beyond it every power is infinite or zero.
_LIMIT = 1100.0


def _log2_pair(b: Builder, a: Value) -> Pair:
    """log2 of a positive number to some 68 bits: 2 atanh(s) / ln 2 with s = f / (2 + f)."""
    e, f = logarithm.split(b, a)
    below, below_rest = ordered_sum(b, b.constant(2.0), f)
    inverse = 1.0 / below
    s = f * inverse
    s_rest = b.fma(s, -below_rest, b.fma(s, -below, f)) * inverse
    z, z_rest = two_product(b, s, s)
    z_rest = b.fma(s * 2.0, s_rest, z_rest)
    # atanh(s) / s - 1 = z (1/3 + z p(z)); only the third is needed beyond double.
    third, third_rest = THIRD["f64"]
    series = ordered_sum(b, b.constant(third), z * b.polynomial(z, ATANH_TAIL["f64"]))
    tail = times(b, (z, z_rest), (series[0], series[1] + third_rest))
    tail = times(b, tail, (s, s_rest))
    atanh = ordered_sum(b, s, tail[0])
    atanh = ordered_sum(b, atanh[0], atanh[1] + (tail[1] + s_rest))
    high, low = LOG2_E["f64"]
    result = times(b, atanh, (2.0 * high, 2.0 * low))
    total = two_sum(b, e, result[0])
    return ordered_sum(b, total[0], total[1] + result[1])


def _exponent(b: Builder, a: Value, y: Value) -> Pair:
    """y log2(a) within what exp2 can tell apart."""
    if b.real is F64:
        log, rest = _log2_pair(b, a)
    else:
        e, f = logarithm.split(b, a)
        log = logarithm.scaled_log(b, e, f, LOG2_E[b.real.name], (1.0, 0.0))
        rest = b.constant(0.0)
    log = b.select(a.equals(0.0), -INFINITY, log)
    log = b.select(a.equals(INFINITY), INFINITY, log)
    product = y * log
    lost = b.fma(y, rest, b.fma(y, log, -product))
    lost = b.select(b.abs(product) < _LIMIT, lost, 0.0)
    # One to an infinite power is one.
    product = b.select(log.equals(0.0), 0.0, product)
    return b.at_most(b.at_least(product, -_LIMIT), _LIMIT), lost


def pow(b: Builder, x: Value, y: Value) -> Value:
    product, lost = _exponent(b, b.abs(x), y)
    turns, n = b.nearest(product, plus=2 * b.real.bias)
    r = ((product - turns) + lost) * sum(LN2[b.real.name])
    result = b.scale(exponential.exp_of_reduced(b, r), n)
    # The sign: an odd power of a negative number. A fraction of one is not real.
    is_integer = b.trunc(y).equals(y)
    half = y * 0.5
    is_odd = is_integer & ~b.trunc(half).equals(half)
    result = b.select(is_odd, b.copysign(result, x), result)
    result = b.select((x < 0.0) & (x > -INFINITY) & ~is_integer, NAN, result)
    total = x + y
    # The sum is also NaN for inf - inf, where no argument is.
    result = b.select(x.is_nan() | y.is_nan(), total, result)
    return b.select(y.equals(0.0) | x.equals(1.0), 1.0, result)
