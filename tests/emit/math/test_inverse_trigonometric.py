"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import (
    Claim,
    check,
    check_at_length,
    check_briefly,
    check_special,
    check_special_pairs,
    check_widely,
    pairs,
)

EDGES = dict.fromkeys(("f32", "f64"), (0.5, 0.7071, 1.0 - 1e-07))
UNIT = {"f32": (-1.0, 1.0), "f64": (-1.0, 1.0)}
RANGES = ((-1.0, 1.0), (0.45, 0.55), (0.9, 1.0))
STEEP = dict.fromkeys(("f32", "f64"), (1.0, 2.0**24, 2.0**53))
CLAIMS = {
    "asin": Claim(mp.asin, np.arcsin, RANGES, EDGES, UNIT),
    "acos": Claim(mp.acos, np.arccos, RANGES, EDGES, UNIT),
    "atan": Claim(mp.atan, np.arctan, (*RANGES, (-9.0, 9.0)), STEEP),
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
def test_special_values_of_atan2(dtype: str) -> None:
    check_special_pairs("atan2", dtype, np.arctan2)


@both
def test_accuracy_of_atan2(dtype: str) -> None:
    check("atan2", dtype, mp.atan2, *pairs(dtype, 1500))


@pytest.mark.slow
@both
def test_accuracy_of_atan2_at_length(dtype: str) -> None:
    check_widely("atan2", dtype, np.arctan2, *pairs(dtype, 2_000_000))
