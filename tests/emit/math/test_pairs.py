"""Two numbers hold what one cannot."""

import numpy as np

from adjoint.emit.math.builder import F64, Builder, Value
from adjoint.emit.math.pairs import ordered_sum, times, two_product, two_sum
from tests.emit.math.compiled import compile_text


def low_part(body: str) -> float:
    """The second of the pair that `body` makes of x = 1 + 2**-30 and y = 2**-40 + 2**-80."""
    b = Builder(F64)
    x, y = Value("%x", "double", b), Value("%y", "double", b)
    pair = {
        "two_sum": lambda: two_sum(b, y, x),
        "ordered_sum": lambda: ordered_sum(b, x, y),
        "two_product": lambda: two_product(b, x, y),
        "times": lambda: times(b, (x, y * 0.0), (y, 0.0)),
    }[body]()
    lines = "\n".join(b.lines)
    text = f"""define void @loop(i64 %n, ptr %out, ptr %p, ptr %q) {{
  %x = load double, ptr %p
  %y = load double, ptr %q
  {lines}
  store double {pair[1].text}, ptr %out
  ret void
}}"""
    loop = compile_text(text, "f64", 2)
    return float(loop(np.array([1 + 2.0**-30]), np.array([2.0**-40 + 2.0**-80]))[0])


def test_what_rounding_lost() -> None:
    assert low_part("two_sum") == 2.0**-80
    assert low_part("ordered_sum") == 2.0**-80
    assert low_part("two_product") == 2.0**-110
    assert low_part("times") == 2.0**-110
