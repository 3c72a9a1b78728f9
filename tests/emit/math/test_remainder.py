"""fmod is exact; remainder has the divisor's sign."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.emit.math.accuracy import check_special_pairs, pairs
from tests.emit.math.compiled import compiled

both = pytest.mark.parametrize("dtype", ["f32", "f64"])


def true_remainder(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As torch defines it. torch's own float kernels are not exact."""
    rest = np.fmod(x, y)
    wrapped: npt.NDArray[Any] = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return wrapped


@both
def test_fmod_is_exact(dtype: str) -> None:
    x, y = pairs(dtype, 100_000)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compiled("fmod", dtype)(x, y), np.fmod(x, y))


@both
def test_remainder_has_the_sign_of_the_divisor(dtype: str) -> None:
    x, y = pairs(dtype, 100_000)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compiled("remainder", dtype)(x, y), true_remainder(x, y))


@both
def test_special_values(dtype: str) -> None:
    check_special_pairs("fmod", dtype, np.fmod)
    check_special_pairs("remainder", dtype, true_remainder)
