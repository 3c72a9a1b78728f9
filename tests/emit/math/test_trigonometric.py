"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from adjoint.emit.math import NEAR
from tests.emit.math.accuracy import (
    Claim,
    check,
    check_at_length,
    check_briefly,
    check_special,
    check_widely,
    stratified,
    uniform,
)
from tests.emit.math.compiled import TYPES, Array, compiled

# The arguments nearest to multiples of pi / 2, among all floats and all doubles.
NEAREST = {
    "f32": (16367173.0 * 2.0**72, 1.5707964),
    "f64": (6381956970095103.0 * 2.0**797, 1.5707963267948966),
}
RANGES = ((-1.0, 1.0), (-10.0, 10.0), (-1e5, 1e5), (-1e9, 1e9))
CLAIMS = {
    "sin": Claim(mp.sin, np.sin, RANGES, NEAREST),
    "cos": Claim(mp.cos, np.cos, RANGES, NEAREST),
    "tan": Claim(mp.tan, np.tan, RANGES, NEAREST),
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


@both
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_near_forms_are_right_where_they_say(name: str, dtype: str) -> None:
    x = stratified(dtype, 2)
    x = np.concatenate(
        [x[np.abs(x) <= NEAR[dtype]][:: 1 if dtype == "f32" else 4], quarters(dtype)]
    )
    check(f"near_{name}", dtype, CLAIMS[name].truth, x)
    zeros = compiled(f"near_{name}", dtype)(np.array([0.0, -0.0]))
    np.testing.assert_array_equal(np.signbit(zeros), [False, name == "sin"])


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_near_forms_at_length(name: str, dtype: str) -> None:
    for bound in (1.0, 100.0, NEAR[dtype]):
        x = uniform(dtype, -bound, bound, 2_000_000)
        check_widely(f"near_{name}", dtype, CLAIMS[name].wide, x)


def quarters(dtype: str) -> Array:
    """Numbers next to multiples of pi / 2, where most bits cancel."""
    n = np.unique(np.geomspace(1, NEAR[dtype] / 1.6, 800).astype(np.int64))
    multiples: Array = (n * (np.pi / 2)).astype(TYPES[dtype][1])
    return multiples
