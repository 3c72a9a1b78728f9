from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adjoint.loops.operators import MATH, OPERATORS, identity

LEAST = np.iinfo(np.int32).min


@pytest.mark.parametrize(
    ("operator", "args", "expected"),
    [
        ("floordiv", (-7, 2), -4),
        ("mod", (-7, 2), 1),
        ("mod", (7, -2), -1),
        ("quotient", (-7, 2), -3),
        ("fmod", (-7, 2), -1),
        ("floordiv", (LEAST, -1), LEAST),
        ("quotient", (LEAST, -1), LEAST),
        ("mod", (LEAST, -1), 0),
        ("quotient", (7, 0), 7),
        ("floordiv", (-7, 0), -7),
        ("shift_left", (1, 31), LEAST),
        ("shift_left", (1, 32), 0),
        ("shift_left", (1, -1), 0),
        ("shift_right", (-8, 1), -4),
        ("shift_right", (-8, 40), -1),
        ("round", (3,), 3),
        ("not", (0,), -1),
    ],
)
def test_integers(operator: str, args: tuple[int, ...], expected: int) -> None:
    result = OPERATORS[operator].meaning(*map(np.int32, args))
    assert (type(result), result) == (np.int32, expected)


@pytest.mark.parametrize(
    ("operator", "args", "expected"),
    [
        ("round", (2.5,), 2.0),
        ("round", (-1.5,), -2.0),
        ("trunc", (-1.5,), -1.0),
        ("maximum", (1.0, np.nan), np.nan),
        ("minimum", (np.nan, 1.0), np.nan),
        ("fmod", (-7.5, 2.0), -1.5),
        ("copysign", (2.0, -0.0), -2.0),
        ("exp", (0.0,), 1.0),
    ],
)
def test_floating_point(operator: str, args: tuple[Any, ...], expected: float) -> None:
    result = OPERATORS[operator].meaning(*map(np.float32, args))
    assert isinstance(result, np.float32)
    np.testing.assert_array_equal(result, np.float32(expected))


def test_the_type_of_a_result() -> None:
    f32, i64, truth = torch.float32, torch.int64, torch.bool
    assert OPERATORS["add"].result((f32, f32)) == f32
    assert OPERATORS["lt"].result((i64, i64)) == truth
    assert OPERATORS["select"].result((truth, f32, f32)) == f32


@pytest.mark.parametrize(
    ("operator", "dtypes"),
    [
        ("add", (torch.float32, torch.int64)),
        ("add", (torch.float32,)),
        ("select", (torch.float32, torch.float32, torch.float32)),
        ("select", (torch.bool, torch.float32, torch.int64)),
    ],
)
def test_types_that_do_not_agree(operator: str, dtypes: tuple[torch.dtype, ...]) -> None:
    with pytest.raises(TypeError):
        OPERATORS[operator].result(dtypes)


def test_functions_of_the_library_are_operators() -> None:
    assert set(OPERATORS) > MATH


def test_an_operator_that_merges_nothing_has_no_identity() -> None:
    with pytest.raises(ValueError, match="select has no identity"):
        identity("select", torch.float32)
