from __future__ import annotations

import pytest
import torch

from adjoint.loops.expressions import (
    Apply,
    Cast,
    Constant,
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
    apply,
    cast,
    children,
    constant,
    integer,
    walk,
)
from adjoint.loops.show import show_expression

F32 = torch.float32
X = Load("x", Counter("i"), F32)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (X + 1, "(x[i] + 1.0)"),
        (1 + X, "(1.0 + x[i])"),
        (X - 2, "(x[i] - 2.0)"),
        (2 - X, "(2.0 - x[i])"),
        (X * X, "(x[i] * x[i])"),
        (3 * X, "(3.0 * x[i])"),
        (X / 2, "(x[i] / 2.0)"),
        (1 / X, "(1.0 / x[i])"),
        (-X, "neg(x[i])"),
        (X < 0, "(x[i] < 0.0)"),
        (X <= 0, "(x[i] <= 0.0)"),
        (X > 0, "(x[i] > 0.0)"),
        (X >= 0, "(x[i] >= 0.0)"),
        (X.equals(0), "(x[i] == 0.0)"),
        (X.differs(0), "(x[i] != 0.0)"),
        (Counter("i") * Extent("n") + 3, "((i * n) + 3)"),
    ],
)
def test_arithmetic_makes_expressions(made: Expression, text: str) -> None:
    assert show_expression(made) == text


def test_a_number_takes_the_type_of_what_it_meets() -> None:
    made = X + 1
    assert isinstance(made, Apply)
    other = made.args[1]
    assert isinstance(other, Constant)
    assert (other.dtype, type(other.value)) == (F32, float)
    assert made.dtype == F32
    assert (X < 1).dtype == torch.bool


def test_types_must_agree() -> None:
    with pytest.raises(TypeError, match=r"torch\.float32, torch\.int64"):
        X + Counter("i")
    with pytest.raises(TypeError, match="2 arguments expected, 1 given"):
        apply("add", X)
    with pytest.raises(TypeError, match="arguments of types"):
        apply("select", X, X, X)


def test_a_constant_has_a_value_of_its_type() -> None:
    values = [constant(2, dtype).value for dtype in (torch.bool, torch.int32, F32)]
    assert values == [True, 2, 2.0]
    assert [type(value) for value in values] == [bool, int, float]
    assert integer(3).dtype == torch.int64


def test_a_cast_to_the_same_type_is_nothing() -> None:
    assert cast(X, F32) is X
    made = cast(X, torch.float64)
    assert isinstance(made, Cast)
    assert made.dtype == torch.float64


def test_a_constant_is_cast_at_once() -> None:
    made = cast(constant(1, torch.int64), F32)
    assert isinstance(made, Constant)
    assert (made.value, made.dtype) == (1.0, F32)


def test_walk_gives_arguments_first_and_each_once() -> None:
    total = X + X
    product = total * total
    assert [show_expression(each) for each in walk(product)] == [
        "i",
        "x[i]",
        "(x[i] + x[i])",
        "((x[i] + x[i]) * (x[i] + x[i]))",
    ]


def test_children() -> None:
    condition, one, other = X > 0, Name("a", F32), constant(0, F32)
    guarded = Guarded(condition, one, other)
    assert children(guarded) == (condition, one, other)
    assert children(one) == ()
    assert children(Cast(X, torch.float64)) == (X,)
    assert guarded.dtype == F32
