"""Within the promised ulp of mpmath, over the whole range."""

import pytest
import torch
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special, of_torch

EDGES = {"f32": (1.0, 3.92, 4.0, 9.19, 10.05, 10.19), "f64": (1.0, 5.86, 6.0, 26.54, 27.22, 27.4)}
RANGES = ((-1.0, 1.0), (-4.0, 6.0), (0.0, 27.0))
WHERE = {"f32": (-30.0, 30.0), "f64": (-30.0, 30.0)}
CLAIMS = {
    "erf": Claim(mp.erf, of_torch(torch.erf), RANGES, EDGES, WHERE, wide_judges_f64=False),
    "erfc": Claim(mp.erfc, of_torch(torch.erfc), RANGES, EDGES, WHERE, wide_judges_f64=False),
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
