"""Within the promised ulp of mpmath, over the whole range."""

from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp

from tests.emit.math.accuracy import (
    Claim,
    check,
    check_at_length,
    check_briefly,
    check_special,
    of_torch,
)
from tests.emit.math.compiled import TYPES


def erfinv(x: Any) -> Any:
    """By Newton's method on the logarithm of erfc, since mpmath's own loses what 1 - x has."""
    a = abs(x)
    if a >= 1 or mp.isnan(x):
        return mp.sign(x) * mp.inf if a == 1 else mp.nan
    if a < 0.5:
        return mp.erfinv(x)
    goal = mp.log(1 - a)
    y = mp.sqrt(-goal)
    step = mp.one
    while abs(step) > mp.eps**0.75:
        tail = mp.erfc(y)
        step = (mp.log(tail) - goal) * tail * mp.exp(y**2) * mp.sqrt(mp.pi) / 2
        y += step
    return mp.sign(x) * y


# Where the centre ends: 1 - x**2 = exp(-6.5).
EDGES = {"f32": (0.5, 0.9992480, 1.0), "f64": (0.5, 0.999247997649744, 1.0)}
CLAIM = Claim(
    erfinv,
    of_torch(torch.erfinv),
    ((-1.0, 1.0), (0.98, 1.0), (-0.2, 0.2)),
    EDGES,
    {"f32": (-2.0, 2.0), "f64": (-2.0, 2.0)},
    wide_judges_f64=False,
)
both = pytest.mark.parametrize("dtype", ["f32", "f64"])


@both
def test_special_values(dtype: str) -> None:
    check_special("erfinv", dtype, CLAIM)


@both
def test_accuracy(dtype: str) -> None:
    check_briefly("erfinv", dtype, CLAIM)


@both
def test_accuracy_near_one(dtype: str) -> None:
    """1 - x of every exponent."""
    bits = {"f32": 24, "f64": 53}[dtype]
    distances = np.random.default_rng(3).uniform(1.0, 2.0, (bits, 40)) * 0.5 ** np.arange(
        1, bits + 1
    ).reshape(-1, 1)
    x = (1.0 - distances.ravel()).astype(TYPES[dtype][1])
    check("erfinv", dtype, erfinv, np.concatenate([x, -x]))


@pytest.mark.slow
@both
def test_accuracy_at_length(dtype: str) -> None:
    check_at_length("erfinv", dtype, CLAIM)
