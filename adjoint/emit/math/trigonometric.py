"""sin, cos and tan: x = (n + f) pi / 2 with f in [-1/2, 1/2], found exactly however large x is.

x is m 2**k with an integer m of 53 bits (24 for a float). Only 2**k 2/pi modulo 4 matters, since m
times a multiple of 4 is whole turns. A table has that number, in parts.
"""

import math
from collections.abc import Callable
from functools import cache

from adjoint.emit.math.builder import F64, Builder, Value
from adjoint.emit.math.coefficients import COS, PI_2, PI_2_PARTS, SIN, TWO_OVER_PI
from adjoint.emit.math.pairs import ordered_sum, two_product, two_sum

# near_sin and near_cos are accurate up to here: for callers that check the argument.
NEAR = {"f32": 2.0**20, "f64": 2.0**26}

_DIGITS = 1280
# Bits of the first part in a float's table: few enough that a float times it is exact in double.
_WIDE_BITS = 29
_F64_STEP, _F64_PARTS = 32, 4


@cache
def wide_table() -> tuple[float, ...]:
    """For k = 0 ... 104, 2**k 2/pi modulo 4 in two parts, the first of 29 bits."""
    rows: list[float] = []
    for k in range(105):
        turns = (TWO_OVER_PI << k) & ((1 << (_DIGITS + 2)) - 1)
        cut = _DIGITS + 2 - _WIDE_BITS if k else _DIGITS - _WIDE_BITS
        high = turns >> cut << cut
        rows += [high / 2**_DIGITS, (turns - high) / 2**_DIGITS]
    return tuple(rows)


@cache
def f64_table() -> tuple[float, ...]:
    """For k = 0, 32, ... 992, 2**k 2/pi modulo 4 in four parts of 53 bits."""
    rows: list[float] = []
    for k in range(0, 993, _F64_STEP):
        left = (TWO_OVER_PI << k) & ((1 << (_DIGITS + 2)) - 1)
        for _ in range(_F64_PARTS):
            part = int.bit_length(left) - 53
            high = left >> part << part
            rows.append(high / 2**_DIGITS)
            left -= high
    return tuple(rows)


def reduced_wide(b: Builder, a: Value) -> tuple[Value, None, Value]:
    """The angle and the quadrant of a float a >= 0 in double, whose rounding does not matter."""
    k = (b.bits(a) >> b.real.mantissa_bits) - (b.real.bias + 23)
    k = b.select(k < 0, 0, k)
    k = b.select(k > 104, 104, k)
    row = k + k
    m = a * b.power_of_two(-k)
    product = m * b.look_up("adjoint.turns.f32", wide_table(), row)
    n, quadrant = b.nearest(product)
    f = b.fma(m, b.look_up("adjoint.turns.f32", wide_table(), row + 1), product - n)
    return f * PI_2["f64"][0], None, quadrant


def distilled(b: Builder, terms: list[Value]) -> list[Value]:
    """Terms of the same sum, each less than the rounding error of the one before."""
    total = terms[-1]
    lost: list[Value] = []
    for term in reversed(terms[:-1]):
        total, rest = two_sum(b, term, total)
        lost.append(rest)
    return [total, *reversed(lost)]


def folded(b: Builder, x: Value) -> Value:
    """x without whole turns, which are 4 here."""
    return b.fma(b.intrinsic("rint", x * 0.25), -4.0, x)


def reduced_f64(b: Builder, a: Value) -> tuple[Value, Value, Value]:
    """The angle, its rounding error, and the quadrant of a >= 0."""
    k = (b.bits(a) >> b.real.mantissa_bits) - (b.real.bias + 52)
    k = b.select(k < 0, 0, k)
    k = b.select(k > 971, 971, k)
    block = k >> 5
    # m 2**k = (m 2**(k mod 32)) 2**(32 block)
    m = a * b.power_of_two(-(block << 5))
    row = block << 2
    parts = [b.look_up("adjoint.turns.f64", f64_table(), row + i) for i in range(_F64_PARTS)]
    # m * part = high + low, exactly.
    high = [m * part for part in parts]
    low = [b.fma(m, part, -h) for part, h in zip(parts[:3], high, strict=False)]
    first, second, third = folded(b, high[0]), folded(b, low[0]), folded(b, high[1])
    n, quadrant = b.nearest(first + (second + third))
    # Near a multiple of pi / 2 all but the last 60 bits cancel: two passes keep what is left exact.
    terms = [first - n, second, third, low[1], high[2], low[2], high[3]]
    terms = distilled(b, distilled(b, terms))
    f, rest = two_sum(b, terms[0], terms[1] + terms[2])
    pi_2, pi_2_rest = PI_2["f64"]
    r = f * pi_2
    return r, b.fma(f, pi_2, -r) + b.fma(f, pi_2_rest, rest * pi_2), quadrant


def reduced_near(b: Builder, a: Value) -> tuple[Value, Value | None, Value]:
    """For 0 <= a <= NEAR, in the type itself: a - n pi / 2, where the first product is exact."""
    turns, quadrant = b.nearest(a, 2.0 / math.pi)
    first, second, third = PI_2_PARTS[b.real.name]
    exact = b.fma(turns, -first, a)
    if b.real is not F64:
        return b.fma(turns, -third, b.fma(turns, -second, exact)), None, quadrant
    product, product_rest = two_product(b, turns, -second)
    r, rest = ordered_sum(b, exact, product)
    return r, rest + b.fma(turns, -third, product_rest), quadrant


Reduction = Callable[[Builder, Value], tuple[Value, Value | None, Value]]


def reduced_far(b: Builder, a: Value) -> tuple[Value, Value | None, Value]:
    return reduced_f64(b, a) if b.real is F64 else reduced_wide(b, a)


def _sine_and_cosine(b: Builder, x: Value, reduced: Reduction) -> tuple[Value, Value, Value]:
    """Of |x| less whole quarters, and the number of the quarter."""
    r, rest, quadrant = reduced(b, b.abs(x))
    z = r * r
    half = b.fma(z, -0.5, 1.0)
    sine_slope = b.polynomial(z, SIN[b.real.name])
    cosine_tail = b.polynomial(z, COS[b.real.name])
    if rest is None:
        return b.fma(r * z, sine_slope, r), b.fma(z * z, cosine_tail, half), quadrant
    # sin(r + rest) = sin(r) + rest cos(r), cos(r + rest) = cos(r) - rest sin(r)
    sine = r + b.fma(rest, half, (r * z) * sine_slope)
    # The rounding error of 1 - z / 2; with |z| < 0.62 the difference from 1 is exact.
    lost = b.fma(z, -0.5, 1.0 - half)
    return sine, half + b.fma(z * z, cosine_tail, b.fma(rest, -r, lost)), quadrant


def flip_sign(b: Builder, x: Value, turned: Value) -> Value:
    """-x if bit 1 of `turned` is set."""
    return b.from_bits(b.bits(x) ^ ((turned & 2) << (b.real.bits - 2)))


def sin(b: Builder, x: Value, reduced: Reduction = reduced_far) -> Value:
    sine, cosine, quadrant = _sine_and_cosine(b, x, reduced)
    result = b.select((quadrant & 1).equals(0), sine, cosine)
    return b.from_bits(b.bits(flip_sign(b, result, quadrant)) ^ sign_bit(b, x))


def cos(b: Builder, x: Value, reduced: Reduction = reduced_far) -> Value:
    sine, cosine, quadrant = _sine_and_cosine(b, x, reduced)
    result = b.select((quadrant & 1).equals(0), cosine, sine)
    return flip_sign(b, result, quadrant + 1)


def tan(b: Builder, x: Value) -> Value:
    sine, cosine, quadrant = _sine_and_cosine(b, x, reduced_far)
    is_even = (quadrant & 1).equals(0)
    result = b.select(is_even, sine, cosine) / b.select(is_even, cosine, -sine)
    return b.from_bits(b.bits(result) ^ sign_bit(b, x))


def near_sin(b: Builder, x: Value) -> Value:
    return sin(b, x, reduced_near)


def near_cos(b: Builder, x: Value) -> Value:
    return cos(b, x, reduced_near)


def is_small(b: Builder, x: Value) -> Value:
    """Whether `near_sin` and `near_cos` are accurate."""
    return b.abs(x) <= NEAR[b.real.name]


def sign_bit(b: Builder, x: Value) -> Value:
    return b.bits(x) & -(1 << (b.real.bits - 1))
