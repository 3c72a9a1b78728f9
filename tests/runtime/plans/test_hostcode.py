from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from adjoint.runtime.plans.hostcode import HostCode, Undefined, execute
from adjoint.torch_private import size_evaluation

N, M = sympy.symbols("n m", integer=True, positive=True)


@pytest.mark.parametrize(
    "expr",
    [
        N * M + 3,
        FloorDiv(N - 7, 4) * Mod(M, 5),
        Max(N, 3 * M) - Min(N, M, 4),
        N**3 - M,
        sympy.Integer(5),
        -N,
    ],
)
def test_sizes_are_recorded(expr: sympy.Expr) -> None:
    code = HostCode()
    n, m = code.variable(N), code.variable(M)
    value = code.size(expr)
    assert code.in_python == []
    for sizes in ((1, 1), (2, 9), (5, 3), (12, 4)):
        words = list(code.words)
        words[n.index], words[m.index] = sizes
        execute(code.instructions, words)
        known = dict(zip((N, M), sizes, strict=True))
        assert words[value.index] == size_evaluation.evaluate(expr, known)


def test_python_evaluates_what_has_no_instruction() -> None:
    code = HostCode()
    code.variable(N)
    expr = sympy.Piecewise((N, N > 3), (sympy.Integer(0), True))
    value = code.size(expr)
    assert code.in_python == [(value.index, expr)]
    assert code.size(expr) is value


def test_constants_are_folded_and_nothing_is_computed_twice() -> None:
    code = HostCode()
    n = code.variable(N)
    assert (code.constant(3) * 4 + 1).known == 13
    assert n + 0 is n
    assert n * 1 is n
    assert n + 5 is n + 5
    assert len(code.instructions) == 1


@pytest.mark.parametrize(
    ("expr", "why"),
    [(FloorDiv(M, N), "9 is divided by zero"), (Mod(M, N), "9 is divided by zero")],
)
def test_a_division_by_zero_is_undefined(expr: sympy.Expr, why: str) -> None:
    code = HostCode()
    n, m = code.variable(N), code.variable(M)
    code.size(expr)
    words = list(code.words)
    words[n.index], words[m.index] = 0, 9
    with pytest.raises(Undefined, match=why):
        execute(code.instructions, words)


def test_a_number_of_more_than_64_bits_is_undefined() -> None:
    code = HostCode()
    n = code.variable(N)
    code.size(N**3)
    words = list(code.words)
    words[n.index] = 1 << 31
    with pytest.raises(Undefined, match=f"{1 << 93} does not fit into 64 bits"):
        execute(code.instructions, words)
