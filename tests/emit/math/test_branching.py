"""Loops that call a function that branches: vectorized, and right whatever meets in a vector."""

from functools import cache

import numpy as np
import pytest

from adjoint.emit.math import (
    BRANCHING,
    NEAR,
    bodies_of,
    branching_call,
    branching_definitions,
    definitions,
)
from adjoint.runtime.cpu import machines
from tests.emit.math.accuracy import stratified
from tests.emit.math.compiled import TYPES, Loop, compile_text, compiled, loop_around

WIDTHS = (16, 32, 64)

each = pytest.mark.parametrize("name", BRANCHING)
both = pytest.mark.parametrize("dtype", ["f32", "f64"])


@cache
def branching(name: str, dtype: str, vector_bytes: int) -> Loop:
    forms = branching_definitions([(name, dtype)], vector_bytes, '"prefer-vector-width"="512"')
    defined = definitions(bodies_of([(name, dtype)])) + forms
    call = branching_call(name, dtype, "%x0", vector_bytes)
    return compile_text(loop_around(call, dtype, 1, defined), dtype, 1)


@pytest.mark.parametrize("vector_bytes", WIDTHS)
@both
@each
def test_small_and_large_arguments_in_one_vector(name: str, dtype: str, vector_bytes: int) -> None:
    generator = np.random.default_rng(0)
    x = stratified(dtype, 2)[::7].copy()
    far = np.abs(x) > NEAR[dtype]
    assert far.any()
    assert not far.all()
    generator.shuffle(x)  # Nearly every vector has both.
    far = np.abs(x) > NEAR[dtype]
    got = branching(name, dtype, vector_bytes)(x)
    # In a vector with a large argument, all are reduced as such.
    lanes = vector_bytes // np.dtype(TYPES[dtype][1]).itemsize
    whole = compiled(name, dtype)(x)
    near = compiled(f"near_{name}", dtype)(x)
    np.testing.assert_array_equal(got[far], whole[far])
    assert np.all((got[~far] == whole[~far]) | (got[~far] == near[~far]))
    small = x[~far][: lanes * 40]
    np.testing.assert_array_equal(
        branching(name, dtype, vector_bytes)(small), compiled(f"near_{name}", dtype)(small)
    )


@both
@each
def test_what_is_no_number(name: str, dtype: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0] * 5, TYPES[dtype][1])
    np.testing.assert_array_equal(
        branching(name, dtype, 32)(x), compiled(name, dtype)(x), strict=True
    )


@both
@each
def test_loops_call_the_vector_form(name: str, dtype: str) -> None:
    width = machines.host().vector_bytes
    lanes = width // np.dtype(TYPES[dtype][1]).itemsize
    text = branching(name, dtype, width).optimised
    body = text[text.index("@loop(") :]
    assert f"@adjoint.branching.{name}.{dtype}.x{lanes}(" in body
