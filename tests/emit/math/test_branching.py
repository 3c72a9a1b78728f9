"""Loops that call a function that branches: vectorized, and right whatever meets in a vector."""

from functools import cache

import numpy as np
import pytest

from adjoint.emit.math import (
    BRANCHING,
    FUNCTIONS,
    NEAR,
    bodies_of,
    branching_call,
    branching_definitions,
    conditions,
    definitions,
)
from adjoint.runtime.cpu import machines
from tests.emit.math.accuracy import stratified
from tests.emit.math.compiled import TYPES, Array, Loop, compile_text, compiled, loop_around

WIDTHS = (16, 32, 64)

each = pytest.mark.parametrize("name", BRANCHING)
both = pytest.mark.parametrize("dtype", ["f32", "f64"])


@cache
def branching(name: str, dtype: str, vector_bytes: int) -> Loop:
    wanted, count = [(name, dtype)], FUNCTIONS[name]
    forms = branching_definitions(wanted, vector_bytes, '"prefer-vector-width"="512"')
    defined = definitions(bodies_of(wanted)) + conditions(wanted) + forms
    call = branching_call(name, dtype, [f"%x{n}" for n in range(count)], vector_bytes)
    return compile_text(loop_around(call, dtype, count, defined), dtype, count)


def arguments(name: str, dtype: str) -> tuple[list[Array], np.ndarray]:
    """Numbers of every size in random order, and which of them are near."""
    generator = np.random.default_rng(0)
    x = stratified(dtype, 2)[::7].copy()
    generator.shuffle(x)
    if FUNCTIONS[name] == 1:
        return [x], np.abs(x) <= NEAR[dtype]
    factors = generator.uniform(1e-3, 9, x.size).astype(x.dtype)
    bits = {"f32": 27, "f64": 51}[dtype]
    with np.errstate(all="ignore"):
        y = np.where(generator.random(x.size) < 0.8, x * factors, x[::-1])
        bound = np.abs(y) * x.dtype.type(2.0**bits)
    return [x, y], (np.abs(x) <= bound) & np.isfinite(y)


@pytest.mark.parametrize("vector_bytes", WIDTHS)
@both
@each
def test_small_and_large_arguments_in_one_vector(name: str, dtype: str, vector_bytes: int) -> None:
    given, near = arguments(name, dtype)
    assert near.any()
    assert not near.all()
    loop = branching(name, dtype, vector_bytes)
    # In a vector with a large argument, all are computed as if they were large.
    by_far, by_near = compiled(name, dtype)(*given), compiled(f"near_{name}", dtype)(*given)
    got = loop(*given)
    np.testing.assert_array_equal(got[~near], by_far[~near])
    is_one = (got == by_far) | (got == by_near) | np.isnan(got) & np.isnan(by_far)
    assert is_one[near].all()
    small = [x[near] for x in given]
    np.testing.assert_array_equal(loop(*small), compiled(f"near_{name}", dtype)(*small))


@both
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_near_remainders_are_exact(name: str, dtype: str) -> None:
    given, near = arguments(name, dtype)
    given = [x[near] for x in given]
    found, expected = (compiled(f, dtype)(*given) for f in (f"near_{name}", name))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@both
@each
def test_what_is_no_number(name: str, dtype: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5], TYPES[dtype][1])
    given = [x.ravel() for x in np.meshgrid(*[np.tile(values, 3)] * FUNCTIONS[name])]
    found, expected = branching(name, dtype, 32)(*given), compiled(name, dtype)(*given)
    np.testing.assert_array_equal(found, expected, strict=True)


@both
@each
def test_loops_call_the_vector_form(name: str, dtype: str) -> None:
    width = machines.host().vector_bytes
    lanes = width // np.dtype(TYPES[dtype][1]).itemsize
    text = branching(name, dtype, width).optimised
    body = text[text.index("@loop(") :]
    assert f"@adjoint.branching.{name}.{dtype}.x{lanes}(" in body


def test_loops_with_a_constant_argument_call_it_as_well() -> None:
    host = machines.host()
    wanted = [("remainder", "f64")]
    forms = branching_definitions(wanted, host.vector_bytes, host.attributes)
    defined = definitions(bodies_of(wanted)) + conditions(wanted) + forms
    call = branching_call("remainder", "f64", ["%x0", "2.0"], host.vector_bytes)
    loop = compile_text(loop_around(call, "f64", 1, defined), "f64", 1)
    x = np.linspace(-9, 9, 1001)
    np.testing.assert_array_equal(loop(x), np.remainder(x, 2.0))
    body = loop.optimised[loop.optimised.index("@loop(") :]
    assert f"@adjoint.branching.remainder.f64.x{host.vector_bytes // 8}(" in body
