"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special

RANGES = ((-1.0, 1.0), (-20.0, 20.0), (-0.3, 0.3))
LARGE = (*RANGES, (-90.0, 90.0), (-711.0, 711.0))
WHERE = {"f32": (-1e3, 1e3), "f64": (-1e4, 1e4)}
OVERFLOW = {"f32": (1.0, 88.72, 89.41598), "f64": (1.0, 709.78, 710.4758)}
FAR = dict.fromkeys(("f32", "f64"), (2.0**28, 2.0**54, 2.0**60, 2.0**100))
CLAIMS = {
    "tanh": Claim(
        mp.tanh,
        np.tanh,
        RANGES,
        {"f32": (0.17328, 9.01, 9.5), "f64": (0.17328, 19.06, 20.0)},
        WHERE,
    ),
    "sinh": Claim(mp.sinh, np.sinh, LARGE, OVERFLOW, WHERE),
    "cosh": Claim(mp.cosh, np.cosh, LARGE, OVERFLOW, WHERE),
    "asinh": Claim(mp.asinh, np.arcsinh, RANGES, FAR),
    "acosh": Claim(
        mp.acosh,
        np.arccosh,
        ((1.0, 1.01), (1.0, 9.0)),
        FAR,
        {"f32": (1.0, np.inf), "f64": (1.0, np.inf)},
    ),
    "atanh": Claim(
        mp.atanh,
        np.arctanh,
        ((-1.0, 1.0), (-0.2, 0.2)),
        {"f32": (1.0 - 2e-6, 0.1716), "f64": (1.0 - 1e-14, 0.1716)},
        {"f32": (-0.9999999, 0.9999999), "f64": (-1 + 1e-16, 1 - 1e-16)},
    ),
}
each = pytest.mark.parametrize("name", CLAIMS)
both = pytest.mark.parametrize("dtype", ["f32", "f64"])


@both
@each
def test_special_values(name: str, dtype: str) -> None:
    check_special(name, dtype, CLAIMS[name])


@both
@each
def test_accuracy(name: str, dtype: str) -> None:
    check_briefly(name, dtype, CLAIMS[name])


@pytest.mark.slow
@both
@each
def test_accuracy_at_length(name: str, dtype: str) -> None:
    check_at_length(name, dtype, CLAIMS[name])
