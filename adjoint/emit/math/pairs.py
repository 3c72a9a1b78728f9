"""Double-double arithmetic: numbers as unevaluated sums of two, for more than double precision."""

from adjoint.emit.math.builder import Builder, Operand, Value

Pair = tuple[Value, Value]


def two_sum(b: Builder, x: Value, y: Value) -> Pair:
    """x + y and its rounding error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def ordered_sum(b: Builder, x: Value, y: Value) -> Pair:
    """The same where |x| >= |y|."""
    total = x + y
    return total, y - (total - x)


def two_product(b: Builder, x: Value, y: Operand) -> Pair:
    """x * y and its rounding error."""
    product = x * y
    return product, b.fma(x, y, -product)


def times(b: Builder, x: Pair, y: tuple[Operand, Operand]) -> Pair:
    """The product of pairs, to about twice the precision."""
    high, low = two_product(b, x[0], y[0])
    return ordered_sum(b, high, b.fma(x[0], y[1], b.fma(x[1], y[0], low)))
