"""tanh and its kin."""

from adjoint.emit.math import exponential
from adjoint.emit.math.builder import Builder, Value

# From here on tanh is 1.
TANH_LIMIT = {"f32": 9.5, "f64": 20.0}


def tanh(b: Builder, x: Value) -> Value:
    """t / (t + 2) with t = exp(2x) - 1, which keeps small arguments exact."""
    a = b.at_most(b.abs(x), TANH_LIMIT[b.real.name])
    r, n = exponential.reduced(b, a + a)
    s = b.power_of_two(n)
    t = b.fma(s, exponential.expm1_of_reduced(b, r), s - 1.0)
    return b.copysign(b.ratio_to_sum(t, t, 2.0), x)
