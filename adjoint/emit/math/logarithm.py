"""log, log2, log10 and log1p: x = 2**e (1 + f), and log(x) = e log(2) + log(1 + f)."""

from adjoint.emit.math.builder import INFINITY, NAN, Builder, Value
from adjoint.emit.math.coefficients import LN2, LOG, LOG2_E, LOG10_2, LOG10_E


def exponent_of(b: Builder, x: Value) -> Value:
    """e with x / 2**e in [sqrt(1/2), sqrt(2)), for a positive normal number."""
    m = b.real.mantissa_bits
    # The bits of sqrt(1/2): subtracted, the exponent field counts from there.
    root_half = ((b.real.bias - 1) << m) | int((2**0.5 - 1) * 2**m)
    return (b.bits(x) - root_half) >> m


def split(b: Builder, x: Value) -> tuple[Value, Value]:
    """e (as a real) and f with x = 2**e (1 + f), for any positive number."""
    m = b.real.mantissa_bits
    x, is_subnormal = b.normalized(x)
    e = exponent_of(b, x)
    f = b.from_bits(b.bits(x) - (e << m)) - 1.0
    return b.to_real(e) - b.select(is_subnormal, b.constant(m + 1.0), b.constant(0.0)), f


def scaled_log(
    b: Builder,
    e: Value,
    f: Value,
    unit: tuple[float, float],
    log2: tuple[float, float],
) -> Value:
    """e * log2 + log(1 + f) * unit, both constants in two parts."""
    tail = (f * f) * b.polynomial(f, [c * unit[0] for c in LOG[b.real.name]])
    if unit[1] != 0.0:
        tail = b.fma(f, unit[1], tail)
    if log2[1] != 0.0:
        tail = b.fma(e, log2[1], tail)
    return b.fma(e, log2[0], b.fma(f, unit[0], tail))


def with_special_values(b: Builder, x: Value, result: Value) -> Value:
    """The result, or the logarithm of zero, of negative numbers, of infinity and of NaN."""
    at_most_zero = b.select(x.equals(0.0), b.constant(-INFINITY), b.constant(NAN))
    return b.select(x > 0.0, b.select(x < INFINITY, result, x), at_most_zero)


def log(b: Builder, x: Value) -> Value:
    return with_special_values(b, x, positive_log(b, x))


def positive_log(b: Builder, x: Value) -> Value:
    e, f = split(b, x)
    return scaled_log(b, e, f, (1.0, 0.0), LN2[b.real.name])


def log2(b: Builder, x: Value) -> Value:
    e, f = split(b, x)
    return with_special_values(b, x, scaled_log(b, e, f, LOG2_E[b.real.name], (1.0, 0.0)))


def log10(b: Builder, x: Value) -> Value:
    e, f = split(b, x)
    name = b.real.name
    return with_special_values(b, x, scaled_log(b, e, f, LOG10_E[name], LOG10_2[name]))


def log1p(b: Builder, x: Value) -> Value:
    """With 1 + x near 2**e, f = (1 + x) / 2**e - 1 = x 2**-e + (2**-e - 1), rounded once."""
    u = x + 1.0
    e = exponent_of(b, u)
    # 4 / 2**e is normal for every e, 1 / 2**e is not.
    s = b.power_of_two(2 - e)
    f = b.fma(x * 0.25, s, b.fma(s, 0.25, -1.0))
    result = scaled_log(b, b.to_real(e), f, (1.0, 0.0), LN2[b.real.name])
    result = with_special_values(b, u, result)
    return b.select(b.abs(x) < b.real.epsilon / 4, x, result)
