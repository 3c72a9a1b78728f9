"""fmod and Python's remainder, exactly, without a loop.

x = m 2**i and y = k 2**j with whole m and k of full length, so fmod is (m 2**(i - j) mod k) 2**j,
or x if that is smaller than y. The power of two modulo k comes by repeated squaring.

Where x / y has few enough bits, `near_fmod` takes the quotient itself.
"""

from collections.abc import Callable

from adjoint.emit.math.builder import F64, INFINITY, NAN, Builder, Value
from adjoint.emit.math.pairs import two_product

# Bits of a mantissa, and how many squarings until the power left fits in one.
_LENGTH = {"wide": (24, 4), "f64": (53, 6)}


def _whole(b: Builder, a: Value) -> tuple[Value, Value]:
    """m and i with a = m 2**i and m a whole number of full length."""
    length, _ = _LENGTH[b.real.name]
    bits = b.real.mantissa_bits
    a, is_subnormal = b.normalized(a)
    pattern = b.bits(a)
    exponent = (pattern >> bits) - b.select(is_subnormal, b.whole(bits + 1), b.whole(0))
    fraction = pattern & ((1 << bits) - 1)
    m = b.from_bits(fraction | ((b.real.bias + length - 1) << bits))
    return m, exponent


def _wrapped(b: Builder, x: Value, modulus: Value) -> Value:
    """x + modulus if x is negative."""
    return b.select(x < 0.0, x + modulus, x)


def _product(b: Builder, x: Value, y: Value, modulus: Value, inverse: Value) -> Value:
    """x y modulo modulus, all whole and less than it."""
    high, low = two_product(b, x, y)
    if b.real is not F64:
        # 48 bits: there is no low part.
        quotient = b.intrinsic("rint", high * inverse)
        return _wrapped(b, b.fma(quotient, -modulus, high), modulus)
    # The quotient has up to 53 bits; with the inverse's rounding mended it is off by one at most.
    inverse_rest = b.fma(inverse, -modulus, 1.0) * inverse
    quotient = b.intrinsic("rint", b.fma(high, inverse, high * inverse_rest))
    rest = _wrapped(b, b.fma(quotient, -modulus, high), modulus)
    # Each sum is less than 2**53, so exact.
    return _wrapped(b, b.select(low > 0.0, rest - modulus, rest) + low, modulus)


def fmod(b: Builder, x: Value, y: Value) -> Value:
    _, squarings = _LENGTH[b.real.name]
    a, c = b.abs(x), b.abs(y)
    m, i = _whole(b, a)
    modulus, j = _whole(b, c)
    inverse = 1.0 / modulus
    shift = i - j
    shift = b.select(shift < 0, 0, shift)
    power = b.power_of_two(shift >> squarings)
    for bit in reversed(range(squarings)):
        power = _product(b, power, power, modulus, inverse)
        doubled = b.select((shift & (1 << bit)).equals(0), power, power + power)
        power = b.select(doubled >= modulus, doubled - modulus, doubled)
    m = b.select(m >= modulus, m - modulus, m)
    rest = _product(b, m, power, modulus, inverse)
    result = _shifted(b, rest, j)
    result = b.copysign(b.select(a < c, a, result), x)
    # No remainder by zero, of infinity, or of NaN.
    is_proper = (a < INFINITY) & (c > 0.0)
    return b.select(is_proper, result, b.select(y.is_nan(), y, NAN))


# The bits of the quotient in a near form: its product with a float32 y is exact in double.
_QUOTIENT_BITS = {"f32": 27, "f64": 51}


def has_small_quotient(b: Builder, x: Value, y: Value) -> Value:
    """Whether `near_fmod` and `near_remainder` are exact."""
    c = b.abs(y)
    return (b.abs(x) <= c * 2.0 ** _QUOTIENT_BITS[b.real.name]) & (c < INFINITY)


def near_fmod(b: Builder, x: Value, y: Value) -> Value:
    a, c = b.abs(x), b.abs(y)
    # A quotient just below a whole number may be rounded up to it.  What is left is a multiple of
    # y's last bit and at most y, so that it is exact.
    rest = b.fma(b.trunc(a / c), -c, a)
    return b.copysign(_wrapped(b, rest, c), x)


def _shifted(b: Builder, whole: Value, exponent: Value) -> Value:
    """whole 2**j, the exponent field of y giving j. Exact: it is a multiple of y's ulp."""
    length, _ = _LENGTH[b.real.name]
    n = exponent - (b.real.bias + length - 1)
    half = n >> 1
    return whole * b.power_of_two(half) * b.power_of_two(n - half)


def near_remainder(b: Builder, x: Value, y: Value) -> Value:
    return remainder(b, x, y, near_fmod)


def remainder(
    b: Builder, x: Value, y: Value, fmod: Callable[[Builder, Value, Value], Value] = fmod
) -> Value:
    """Python's remainder, which has the sign of y."""
    result = fmod(b, x, y)
    differs = (result < 0.0) ^ (y < 0.0)
    return b.select(differs & ~result.equals(0.0), result + y, result)
