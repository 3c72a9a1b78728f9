"""The polynomials are near what their comments say."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TypeAlias

import pytest
from mpmath import mp, mpf

from adjoint.emit.math import coefficients

Function: TypeAlias = Callable[[mpf], mpf]
Use: TypeAlias = Callable[[mpf, Function], mpf]

# Name: the function, how the polynomial in it is used, and where.
USES: dict[str, tuple[Function, Use, float]] = {
    "EXP": (mp.exp, lambda r, p: 1 + r + r**2 * p(r), 0.34),
    "EXPM1": (mp.expm1, lambda r, p: r + r**2 * p(r), 0.34),
    "LOG": (mp.log1p, lambda f, p: f + f**2 * p(f), 0.29),
    "SIN": (mp.sin, lambda x, p: x + x**3 * p(x**2), 0.78),
    "COS": (mp.cos, lambda x, p: 1 - x**2 / 2 + x**4 * p(x**2), 0.78),
}
ENOUGH = {"f32": 2.0**-25, "wide": 2.0**-31, "f64": 2.0**-54}


def farthest(truth: Function, used: Use, bound: float, polynomial: tuple[float, ...]) -> mpf:
    """The largest relative error among a hundred points."""
    with mp.workprec(120):
        factors = [mpf(c) for c in reversed(polynomial)]

        def p(x: mpf) -> mpf:
            return reduce(lambda value, c: value * x + c, factors)

        points = [mpf(bound) * (step + mpf("0.5")) / 51 for step in range(-50, 51)]
        return max(abs(used(x, p) / truth(x) - 1) for x in points)


@pytest.mark.parametrize("name", USES)
def test_near_their_functions(name: str) -> None:
    truth, used, bound = USES[name]
    table: Mapping[str, tuple[float, ...]] = getattr(coefficients, name)
    for precision, polynomial in table.items():
        assert farthest(truth, used, bound, polynomial) < ENOUGH[precision]


def test_two_over_pi() -> None:
    with mp.workprec(1400):
        assert mp.mpf(coefficients.TWO_OVER_PI) == mp.floor(mp.ldexp(2 / mp.pi, 1280))
