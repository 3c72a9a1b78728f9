"""pow, against mpmath and with every special case of C."""

import numpy as np
import pytest
from mpmath import mp

from tests.emit.math.accuracy import check, check_special_pairs, check_widely, pairs
from tests.emit.math.compiled import TYPES, Array

both = pytest.mark.parametrize("dtype", ["f32", "f64"])


def bases_and_exponents(dtype: str, count: int) -> tuple[Array, Array]:
    """Bases of any size with exponents that take them anywhere, overflow and nothing included."""
    rng = np.random.default_rng(5)
    x = np.abs(pairs(dtype, count)[0][:count])
    x = x[x > 0]
    bits = 160.0 if dtype == "f32" else 1100.0
    near_one = (1 + rng.normal(0, 1e-3, x.size)).astype(x.dtype)
    bases = np.concatenate([x, near_one])
    with np.errstate(all="ignore"):
        logs = np.log2(bases.astype(np.float64))
        exponents = (rng.uniform(-bits, bits, bases.size) / logs).astype(x.dtype)
    return bases[np.isfinite(exponents)], exponents[np.isfinite(exponents)]


@both
def test_special_values(dtype: str) -> None:
    check_special_pairs("pow", dtype, np.power)


@both
def test_accuracy(dtype: str) -> None:
    check("pow", dtype, mp.power, *bases_and_exponents(dtype, 2000))


@both
def test_whole_powers_of_negative_numbers(dtype: str) -> None:
    x, y = (
        grid.ravel().astype(TYPES[dtype][1])
        for grid in np.meshgrid(np.linspace(-3, -0.1, 40), np.arange(-9, 10))
    )
    check("pow", dtype, mp.power, x, y)


@pytest.mark.slow
@both
def test_accuracy_at_length(dtype: str) -> None:
    check_widely("pow", dtype, np.power, *bases_and_exponents(dtype, 2_000_000))
