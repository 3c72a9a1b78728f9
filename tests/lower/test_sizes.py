from __future__ import annotations

import sympy

from adjoint.lower.sizes import (
    ceiling,
    estimate,
    is_below,
    is_one,
    product,
    quotient,
    simplified,
)
from adjoint.torch_private.symbols import same_number

S, T = sympy.symbols("s t", integer=True, positive=True)


def test_sizes_are_equal_for_all_inputs_or_not() -> None:
    assert same_number(3, 3)
    assert same_number(S * (T + 1), S * T + S)
    assert not same_number(S, T)
    assert not same_number(S, 3)


def test_products() -> None:
    assert product([2, 3]) == 6
    assert product([]) == 1
    assert same_number(product([S, 2, T]), 2 * S * T)
    assert same_number(product([S, 0]), 0)


def test_a_size_that_is_known_is_an_integer() -> None:
    assert isinstance(simplified(S - S + 3), int)
    assert simplified(S * 2) == 2 * S


def test_quotients_are_whole_for_all_inputs_or_none() -> None:
    assert quotient(6, 3) == 2
    assert quotient(7, 3) is None
    assert quotient(7, 0) is None
    assert quotient(0, 3) == 0
    assert quotient(S, 1) == S
    assert quotient(6 * S * T, 3 * S) == 2 * T
    assert quotient(S, 2) is None
    assert quotient(S, T) is None
    assert quotient(S * S + S, S + 1) == S


def test_how_many_times_it_takes() -> None:
    assert [ceiling(size, 32) for size in (0, 1, 32, 33)] == [0, 1, 1, 2]
    times = ceiling(S, 32)
    assert isinstance(times, sympy.Expr)
    assert [int(times.subs(S, size)) for size in (0, 1, 32, 33)] == [0, 1, 1, 2]


def test_bounds_hold_for_all_inputs() -> None:
    assert is_below(S - 1, S)
    assert is_below(2, 3)
    assert not is_below(3, 3)
    # Not known.
    assert not is_below(1, S)


def test_one() -> None:
    assert is_one(1)
    assert not is_one(S)


def test_an_estimate_is_a_number() -> None:
    assert estimate(7) == 7
    assert estimate(S * T, assumed=10) == 100
