"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special

RANGES = ((-1.0, 1.0), (-20.0, 20.0), (-0.3, 0.3))
CLAIMS = {
    "tanh": Claim(
        mp.tanh,
        np.tanh,
        RANGES,
        {"f32": (0.17328, 9.01, 9.5), "f64": (0.17328, 19.06, 20.0)},
        {"f32": (-100.0, 100.0), "f64": (-100.0, 100.0)},
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
