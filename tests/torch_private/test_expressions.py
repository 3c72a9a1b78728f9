from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Mod, PythonMod, ToFloat

from adjoint.torch_private import expressions
from adjoint.torch_private.expressions import read, written

S, T = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
N = sympy.Symbol("n", integer=True, nonnegative=True)


@pytest.mark.parametrize(
    "expr",
    [
        sympy.Integer(3),
        S,
        N,
        sympy.Symbol("u0", integer=True),
        2 * S + 1,
        S**2 * T - S,
        sympy.Rational(1, 2) * S,
        sympy.Float(2.0),
        sympy.Float(0.1) * ToFloat(S),
        FloorDiv(S, 3),
        -FloorDiv(-S, 128),
        Mod(S, 4),
        PythonMod(S - 3, 4),
        Max(S, T + 1),
        sympy.Max(S, T),
        sympy.Eq(S, T),
        sympy.Ne(S * T, 6),
        S < T,
        S <= 5,
        sympy.And(S < 5, T > 2),
        sympy.Or(S < 5, T > 2),
        sympy.Not(sympy.Eq(S, 3)),
        sympy.true,
        sympy.false,
        sympy.Piecewise((S, S < 5), (T, True)),
    ],
    ids=str,
)
def test_an_expression_is_read_as_it_was_written(expr: sympy.Basic) -> None:
    assert read(written(expr)) == expr


def test_symbols_of_other_assumptions_differ() -> None:
    assert written(S) != written(sympy.Symbol("s0", integer=True))


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        (sympy.sin(S), r"sin in sin\(s0\) has no form"),
        (sympy.Symbol("x", even=True), "the symbol x has other assumptions than sizes have"),
        (sympy.Float(0.1, 30), "0.1.* would be read otherwise"),
        (sympy.oo, "Infinity in oo has no form"),
    ],
)
def test_what_has_no_form(expr: sympy.Basic, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        written(expr)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (None, "None is no expression"),
        (1.5, "1.5 is no expression"),
        ("s0", "s0 is no expression"),
        ([], "is no expression"),
        (["Symbol"], "not enough values"),
        (["Symbol", "s0", "complex"], "is no symbol"),
        (["Symbol", "a b", "integer"], "is no symbol"),
        (["Symbol", 3, "integer"], "is no symbol"),
        (["Rational", 1, 0], "is no quotient"),
        (["Float", 1.5], "bad argument type"),
        (["Float", "one"], "hexadecimal"),
        (["sin", 1], "there is no 'sin'"),
        (["Pow", 2, 1000], "a power of sizes has a small exponent"),
        (["Pow", 2], "missing 1 required"),
        ([["Add"], 1], "unhashable"),
    ],
    ids=str,
)
def test_what_is_no_expression(tree: Any, why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        read(tree)


def test_a_deep_expression_is_refused() -> None:
    tree: Any = 1
    for _ in range(500):
        tree = ["Add", 1, tree]
    with pytest.raises(ValueError, match="no expression"):
        read(tree)


def test_what_is_known_of_sizes() -> None:
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    mode = torch._subclasses.FakeTensorMode(shape_env=shape_env)
    fake = mode.from_tensor(torch.ones(5, 7), static_shapes=False)
    rows = fake.shape[0]
    before = expressions.environment(shape_env, [rows])
    assert len(before) == 1
    assert bool(rows > 3)
    assert expressions.environment(shape_env, [rows]) != before
    assert expressions.environment(None, []) == []
    twice: Any = rows * 2
    again = expressions.number(shape_env, "int", expressions.of_number(twice))
    assert isinstance(again, torch.SymInt)
    assert again.node.expr == twice.node.expr
    with pytest.raises(ValueError, match="sizes are symbols where there are none"):
        expressions.number(None, "int", S)
    with pytest.raises(ValueError, match="there is no size other"):
        expressions.number(shape_env, "int", sympy.Symbol("other", integer=True))
    assert bool(rows == 5)
    assert expressions.symbols_in([rows]) == frozenset()
    assert not any(" in VR" in line for line in expressions.environment(shape_env, [rows]))
