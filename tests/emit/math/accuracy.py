"""Where to look at a function, the true values there, and how far off we are, in ulp."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from mpmath import mp

from tests.emit.math.compiled import TYPES, Array, compiled

LIMITS = {"f32": 2.0, "f64": 4.0}
_BITS = {"f32": (np.uint32, 23, 8), "f64": (np.uint64, 52, 11)}


def stratified(dtype: str, per_exponent: int, seed: int = 0) -> Array:
    """Numbers of both signs with every exponent, subnormal to huge, and random mantissas."""
    integer, mantissa, exponent = _BITS[dtype]
    rng = np.random.default_rng(seed)
    count = (1 << exponent) - 1
    fields = np.arange(count, dtype=integer)[:, None] << integer(mantissa)
    fractions = rng.integers(0, 1 << mantissa, (count, per_exponent), dtype=np.uint64)
    # Both ends of each binade too.
    fractions[:, :1] = 0
    fractions[:, 1:2] = (1 << mantissa) - 1
    bits = (fields | fractions.astype(integer)).ravel()
    positive: Array = bits.view(TYPES[dtype][1])
    return np.concatenate([positive, -positive])


def around(dtype: str, *points: float, steps: int = 20) -> Array:
    """Each point, of either sign, and its neighbours."""
    integer = {"f32": np.int32, "f64": np.int64}[dtype]
    centres = np.array(points, dtype=TYPES[dtype][1]).view(integer)
    bits = (centres[:, None] + np.arange(-steps, steps + 1, dtype=integer)).ravel()
    near: Array = bits.view(TYPES[dtype][1])
    near = near[np.isfinite(near)]
    return np.concatenate([near, -near])


def uniform(dtype: str, low: float, high: float, count: int, seed: int = 1) -> Array:
    values: Array = np.random.default_rng(seed).uniform(low, high, count).astype(TYPES[dtype][1])
    return values


def true_values(function: Callable[..., Any], *arrays: Array) -> list[Any]:
    """By mpmath, to 50 digits more than the arguments' own."""
    with mp.workprec(200):
        points = ([mp.mpf(float(v)) for v in point] for point in zip(*arrays, strict=True))
        return [mp.mpmathify(function(*point)) for point in points]


def largest_finite(dtype: str) -> float:
    return 2.0**128 - 2.0**104 if dtype == "f32" else sys.float_info.max


def ulps_from_mpmath(got: Array, true: list[Any], dtype: str) -> npt.NDArray[np.float64]:
    """The error in units of the last place; infinite where one side is NaN or infinite alone."""
    _, mantissa, exponent = _BITS[dtype]
    lowest = 2 - (1 << (exponent - 1)) - mantissa
    # The first number that rounds to infinity.
    too_large = mp.mpf(2) ** (1 << (exponent - 1)) * (1 - mp.mpf(2) ** -(mantissa + 2))
    errors = np.empty(len(true))
    for i, (ours, value) in enumerate(zip(got.tolist(), true, strict=True)):
        if mp.isnan(value):
            errors[i] = 0.0 if ours != ours else np.inf
        elif abs(value) >= too_large:
            close = abs(value) < too_large * (1 + mp.mpf(2) ** -mantissa)
            right = ours == (np.inf if value > 0 else -np.inf)
            errors[i] = 0.0 if right or (close and abs(ours) == largest_finite(dtype)) else np.inf
        elif not np.isfinite(ours):
            near = abs(value) > largest_finite(dtype) * (1 - mp.mpf(2) ** -mantissa)
            errors[i] = 0.0 if near and ours * value > 0 else np.inf
        else:
            place = lowest if value == 0 else max(mp.frexp(value)[1] - mantissa - 1, lowest)
            errors[i] = float(mp.ldexp(abs(mp.mpf(ours) - value), -place))
    return errors


def ulps_from_wider(got: Array, true: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    """The same against an array of a wider type."""
    _, mantissa, exponent = _BITS[dtype]
    lowest = 2 - (1 << (exponent - 1)) - mantissa
    with np.errstate(all="ignore"):
        rounded = true.astype(got.dtype)
        place = np.maximum(np.frexp(np.where(np.isfinite(true), true, 1))[1] - mantissa - 1, lowest)
        errors = np.ldexp(np.abs(got.astype(true.dtype) - true), -place).astype(np.float64)
        biggest = largest_finite(dtype)
        both = np.isinf(rounded) & (got == rounded) | np.isnan(rounded) & np.isnan(got)
        edge = (np.abs(got) == biggest) & np.isinf(rounded) & (np.abs(true) < biggest * (1 + 1e-6))
        edge |= np.isinf(got) & (np.abs(rounded) == biggest)
        errors = np.where(both | edge, 0.0, errors)
    return np.where(np.isnan(errors), np.inf, errors)


def worst(name: str, dtype: str, errors: npt.NDArray[np.float64], *arrays: Array) -> str | None:
    """The largest error beyond the limit, as a message."""
    i = int(np.argmax(errors))
    if errors[i] <= LIMITS[dtype]:
        return None
    point = ", ".join(f"{array[i]!r}" for array in arrays)
    ours = compiled(name, dtype)(*(array[i : i + 1] for array in arrays))[0]
    count = int((errors > LIMITS[dtype]).sum())
    return f"{name}({point}) = {ours!r} is {errors[i]:.3g} ulp off; {count} points beyond the limit"


def special(dtype: str) -> Array:
    tiny = 2.0**-149 if dtype == "f32" else 2.0**-1074
    points = [0.0, tiny, 1.0, 0.5, 2.0, 3.0, largest_finite(dtype), np.inf]
    values: Array = np.array([*points, *(-p for p in points), np.nan], dtype=TYPES[dtype][1])
    return values


@dataclass(frozen=True)
class Claim:
    """A function of one argument, what it should be, and where that is interesting."""

    truth: Callable[..., Any]
    # The same of arrays of extended precision (for float a double will do).
    wide: Callable[..., npt.NDArray[Any]]
    ranges: tuple[tuple[float, float], ...]
    thresholds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Where the true value is worth asking mpmath for.
    domain: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Whether `wide` is good enough to judge a double.
    wide_judges_f64: bool = True


def check(name: str, dtype: str, truth: Callable[..., Any], *arrays: Array) -> None:
    """Against mpmath, point by point."""
    got = compiled(name, dtype)(*arrays)
    message = worst(name, dtype, ulps_from_mpmath(got, true_values(truth, *arrays), dtype), *arrays)
    assert message is None, message


def check_widely(
    name: str, dtype: str, truth: Callable[..., npt.NDArray[Any]], *arrays: Array
) -> None:
    """Against a function of arrays, for millions of points."""
    got = compiled(name, dtype)(*arrays)
    with np.errstate(all="ignore"):
        true = truth(*(array.astype(np.longdouble) for array in arrays))
    message = worst(name, dtype, ulps_from_wider(got, true, dtype), *arrays)
    assert message is None, message


def check_special(name: str, dtype: str, claim: Claim) -> None:
    """Zeros with their signs, infinities and NaN as C has them, which are numpy's and torch's."""
    x = special(dtype)
    with np.errstate(all="ignore"):
        true = claim.wide(x.astype(np.longdouble)).astype(x.dtype)
    got = compiled(name, dtype)(x)
    exact = (true == 0) | ~np.isfinite(true)
    np.testing.assert_array_equal(got[exact], true[exact])
    np.testing.assert_array_equal(np.signbit(got[true == 0]), np.signbit(true[true == 0]))


def check_briefly(name: str, dtype: str, claim: Claim, count: int = 600) -> None:
    """A few thousand points: every exponent, each range, the neighbours of thresholds."""
    low, high = claim.domain.get(dtype, (-np.inf, np.inf))
    x = stratified(dtype, 2)[:: 1 if dtype == "f32" else 5]
    points = [x, *(uniform(dtype, *limits, count) for limits in claim.ranges)]
    if dtype in claim.thresholds:
        points.append(around(dtype, *claim.thresholds[dtype], steps=6))
    x = np.concatenate(points)
    check(name, dtype, claim.truth, x[(low <= x) & (x <= high)])


def check_at_length(name: str, dtype: str, claim: Claim) -> None:
    """Millions of points if there is a fast reference, else some ten thousand."""
    if dtype == "f64" and not claim.wide_judges_f64:
        check_briefly(name, dtype, claim, count=10_000)
        return
    check_widely(name, dtype, claim.wide, stratified(dtype, 8000 if dtype == "f32" else 1000))
    for limits in claim.ranges:
        check_widely(name, dtype, claim.wide, uniform(dtype, *limits, 2_000_000))


def of_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., npt.NDArray[Any]]:
    """A function of numpy arrays, in double."""

    def applied(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return function(torch.from_numpy(x.astype(np.float64))).numpy().astype(np.longdouble)

    return applied


def pairs(dtype: str, count: int) -> tuple[Array, Array]:
    """Arguments of any size, alike and unlike, and of ordinary size."""
    rng = np.random.default_rng(2)
    any_size = stratified(dtype, max(2, count >> (8 if dtype == "f32" else 11)))
    x, y = rng.choice(any_size, count), rng.choice(any_size, count)
    with np.errstate(over="ignore"):
        near = (x * rng.uniform(0.2, 5.0, count)).astype(x.dtype)
    ordinary = [rng.normal(0.0, 3.0, count).astype(x.dtype) for _ in range(2)]
    left = np.concatenate([x, x, ordinary[0]])
    right = np.concatenate([y, near, ordinary[1]])
    is_finite = np.isfinite(left) & np.isfinite(right)
    return left[is_finite], right[is_finite]


def check_special_pairs(name: str, dtype: str, truth: Callable[..., npt.NDArray[Any]]) -> None:
    """Every special value with every other."""
    values = np.concatenate([special(dtype), np.array([1.5, -1.5, 4.0], TYPES[dtype][1])])
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        true = truth(x.astype(np.longdouble), y.astype(np.longdouble))
    got = compiled(name, dtype)(x, y)
    message = worst(name, dtype, ulps_from_wider(got, true, dtype), x, y)
    assert message is None, message
    is_zero = got == 0
    np.testing.assert_array_equal(np.signbit(got[is_zero]), np.signbit(true[is_zero]))
