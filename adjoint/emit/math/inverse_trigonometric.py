"""asin, acos, atan and atan2."""

from adjoint.emit.math.builder import Builder, Value
from adjoint.emit.math.coefficients import ASIN, ATAN, PI_2


def _odd(b: Builder, x: Value, z: Value, tail: tuple[float, ...]) -> Value:
    """x + x z tail(z) with z = x**2."""
    return b.fma(x * z, b.polynomial(z, tail), x)


def _from_half_turn(b: Builder, x: Value, quarters: int = 1) -> Value:
    """quarters * pi / 2 - x."""
    high, low = PI_2[b.real.name]
    return high * quarters - (x - low * quarters)


def _half_angle(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2; s, which is |x|, or, if so, sqrt((1 - |x|) / 2); and asin(s) - s."""
    a = b.abs(x)
    is_large = a > 0.5
    z = b.select(is_large, b.fma(a, -0.5, 0.5), a * a)
    s = b.select(is_large, b.sqrt(z), a)
    return is_large, s, (s * z) * b.polynomial(z, ASIN[b.real.name])


def asin(b: Builder, x: Value) -> Value:
    is_large, s, tail = _half_angle(b, x)
    high, low = PI_2[b.real.name]
    # pi / 2 - 2 asin(s), the large parts first: their difference is nearly exact.
    large = b.fma(s, -2.0, b.constant(high)) - b.fma(tail, 2.0, -low)
    return b.copysign(b.select(is_large, large, s + tail), x)


def acos(b: Builder, x: Value) -> Value:
    is_large, s, tail = _half_angle(b, x)
    angle = s + tail
    twice = angle + angle
    small = _from_half_turn(b, b.copysign(angle, x))
    large = b.select(x > 0.0, twice, _from_half_turn(b, twice, 2))
    return b.select(is_large, large, small)


def _first_octant(b: Builder, small: Value, large: Value) -> Value:
    """atan(small / large) for 0 <= small <= large."""
    z = small / large
    # 0 / 0 and inf / inf, which C gives a meaning to.
    z = b.select(small.equals(large), b.select(small.equals(0.0), small, 1.0), z)
    return _odd(b, z, z * z, ATAN[b.real.name])


def _first_quadrant(b: Builder, y: Value, x: Value) -> Value:
    """atan(y / x) for y, x >= 0."""
    is_steep = y > x
    small, large = b.select(is_steep, x, y), b.select(is_steep, y, x)
    angle = _first_octant(b, small, large)
    return b.select(is_steep, _from_half_turn(b, angle), angle)


def atan(b: Builder, x: Value) -> Value:
    a = b.abs(x)
    is_steep = a > 1.0
    z = b.select(is_steep, 1.0, a) / b.select(is_steep, a, 1.0)
    square = z * z
    tail = (z * square) * b.polynomial(square, ATAN[b.real.name])
    high, low = PI_2[b.real.name]
    # pi / 2 - atan(z), the large parts first, as in asin.
    steep = (high - z) - (tail - low)
    return b.copysign(b.select(is_steep, steep, z + tail), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    angle = _first_quadrant(b, b.abs(y), b.abs(x))
    # By the sign bit: -0.0 points left.
    angle = b.select(b.bits(x) < 0, _from_half_turn(b, angle, 2), angle)
    return b.copysign(angle, y)
