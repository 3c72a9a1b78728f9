"""Within the promised ulp of mpmath, over the whole range."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import Claim, check_at_length, check_briefly, check_special

EDGES = {"f32": (2**-126, 0.5**0.5, 1.0, 2**0.5), "f64": (2**-1022, 0.5**0.5, 1.0, 2**0.5)}
RANGES = ((0.0, 3.0), (0.9, 1.1))
POSITIVE = {"f32": (1e-50, np.inf), "f64": (4e-324, np.inf)}
CLAIMS = {
    "log": Claim(mp.log, np.log, RANGES, EDGES, POSITIVE),
    "log2": Claim(lambda x: mp.log(x) / mp.log(2), np.log2, RANGES, EDGES, POSITIVE),
    "log10": Claim(lambda x: mp.log(x) / mp.log(10), np.log10, RANGES, EDGES, POSITIVE),
    "log1p": Claim(
        mp.log1p,
        np.log1p,
        ((-1.0, 1.0), (0.0, 9.0), (-0.1, 0.1)),
        dict.fromkeys(("f32", "f64"), (2 ** (-26), 2 ** (-54), 0.29289, 0.41421, 2.0**60)),
        {"f32": (-0.9999999, np.inf), "f64": (-0.9999999999, np.inf)},
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
