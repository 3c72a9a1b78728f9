"""Within the promised ulp of mpmath, over the whole range."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special


def wide_sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    e = np.exp(-np.abs(x))
    quotient: npt.NDArray[Any] = np.where(x < 0, e, 1) / (1 + e)
    return quotient


# Where results become subnormal, vanish, or overflow.
EDGES = {
    "f32": (0.3466, 17.3, 25.0, 87.337, 88.0297, 88.72284, 103.28, 103.972),
    "f64": (0.3466, 37.4, 53.0, 708.397, 709.0896, 709.78271, 744.44, 745.1332),
}
EDGES_OF_2 = {
    "f32": (0.5, 1.0, 126.0, 128.0, 149.0, 150.0),
    "f64": (0.5, 1.0, 1022.0, 1024.0, 1074.0, 1075.0),
}
RANGES = ((-1.0, 1.0), (-20.0, 20.0), (-110.0, 90.0), (-750.0, 710.0))
WHERE = {"f32": (-1e3, 1e3), "f64": (-1e4, 1e4)}
CLAIMS = {
    "exp": Claim(mp.exp, np.exp, RANGES, EDGES, WHERE),
    "exp2": Claim(
        lambda x: mp.mpf(2) ** x, np.exp2, (*RANGES, (-1080.0, 1030.0)), EDGES_OF_2, WHERE
    ),
    "expm1": Claim(mp.expm1, np.expm1, RANGES, EDGES, WHERE),
    "sigmoid": Claim(lambda x: 1 / (1 + mp.exp(-x)), wide_sigmoid, RANGES, EDGES, WHERE),
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
