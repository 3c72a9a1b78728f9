"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special

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
