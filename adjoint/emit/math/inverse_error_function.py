"""erfinv: x times a smooth function of w = -log(1 - x**2)."""

from adjoint.emit.math import logarithm
from adjoint.emit.math.builder import INFINITY, NAN, Builder, Value
from adjoint.emit.math.coefficients import ERFINV, ERFINV_TAIL_F32, ERFINV_TAIL_F64

_TAIL = {**ERFINV_TAIL_F32, **ERFINV_TAIL_F64}
_MIDDLE, _LIMIT = 1.25, 6.5
_TAIL_MIDDLE = {"f32": 3.0, "f64": 4.0}


def erfinv(b: Builder, x: Value) -> Value:
    name = b.real.name
    # 1 - |x| is exact where it matters, near 1; the square of x would not be.
    w = -logarithm.positive_log(b, (1.0 - x) * (1.0 + x))
    centre = b.polynomial(w - _MIDDLE, ERFINV[name])
    tail = b.polynomial(b.sqrt(w) - _TAIL_MIDDLE[name], _TAIL[name])
    is_centre = w < _LIMIT
    result = b.fma(x, b.select(is_centre, centre, tail), b.select(is_centre, x, x * 2.0))
    a = b.abs(x)
    beyond = b.select(a.equals(1.0), b.constant(INFINITY), b.constant(NAN))
    # The sum has lost the sign of zero.
    return b.copysign(b.select(a < 1.0, result, beyond), x)
