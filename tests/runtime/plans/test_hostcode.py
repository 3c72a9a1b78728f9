"""Host code computes what Python would, whoever executes it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from adjoint.runtime.plans.hostcode import HostCode, Op, Undefined, Value, execute
from adjoint.runtime.plans.interpreter import interpreter
from adjoint.torch_private import symbols

N, M = sympy.symbols("n m", integer=True, positive=True)


def native(code: HostCode, words: list[int]) -> list[int] | None:
    """The words after execution by the native interpreter; None: something is undefined."""
    memory = np.array(words, dtype=np.int64)
    instructions = np.array([*code.instructions, (0, 0, 0, 0)], dtype=np.int64)
    count = len(code.instructions)
    failed = interpreter()(memory.ctypes.data, instructions.ctypes.data, count)
    return None if failed else memory.tolist()


def in_python(code: HostCode, words: list[int]) -> list[int] | None:
    words = list(words)
    try:
        execute(code.instructions, words)
    except Undefined:
        return None
    return words


def random_code(rng: random.Random) -> tuple[HostCode, list[Value]]:
    code = HostCode()
    variables = [code.variable() for _ in range(3)]
    values = list(variables)
    for _ in range(rng.randrange(20)):
        op = rng.choice([each for each in Op if each is not Op.LAYOUT])
        operands: list[Value | int] = [*values, rng.randrange(-5, 9)]
        # Small numbers: words wrap around, and Python's do not.
        values.append(code.compute(op, rng.choice(values), rng.choice(operands)) % 10007)
    lifetimes = []
    for _ in range(rng.randrange(24)):
        first = rng.randrange(12)
        lifetimes.append((first, first + rng.randrange(6), rng.choice(values) % 1000))
    offsets, total = code.layout(lifetimes, rng.choice([1, 64]))
    code.put([7, values[0], total, *offsets])
    return code, variables


@pytest.mark.parametrize("seed", range(8))
def test_native_code_does_what_python_does(seed: int) -> None:
    rng = random.Random(seed)
    undefined = 0
    for _ in range(40):
        code, variables = random_code(rng)
        words = list(code.words)
        for variable in variables:
            words[variable.index] = rng.randrange(-3, 50)
        expected = in_python(code, words)
        undefined += expected is None
        found = native(code, words)
        if expected is None:
            assert found is None
            continue
        assert found is not None
        # Working memory of a layout is its own business.
        used = {result for _, result, _, _ in code.instructions}
        assert [found[index] for index in used] == [expected[index] for index in used]
    assert 0 < undefined < 40


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
        assert words[value.index] == symbols.evaluate(expr, known)


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


def test_a_program_of_any_sizes_has_one_host() -> None:
    """Sizes that were never seen before compile nothing and keep nothing."""
    compiled = torch.compile(
        lambda x: (x.sin() @ x.t()).softmax(-1) + x.sum(), backend="adjoint", dynamic=True
    )
    for rows in (3, 1, 17, 0, 4, 2, 300, 5):
        x = torch.rand(rows, 6, dtype=torch.float64)
        expected = (x.sin() @ x.t()).softmax(-1) + x.sum()
        torch.testing.assert_close(compiled(x), expected)
