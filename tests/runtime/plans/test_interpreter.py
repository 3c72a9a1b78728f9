"""The native interpreter does what Python does."""

from __future__ import annotations

import random

import numpy as np
import pytest

from adjoint.runtime.plans.hostcode import HostCode, Op, Undefined, Value, execute
from adjoint.runtime.plans.interpreter import interpreter


def native(code: HostCode, words: list[int]) -> list[int] | None:
    """The words after execution by the native interpreter; None: something is undefined."""
    memory = np.array(words, dtype=np.int64)
    instructions = np.array([*code.instructions, (0, 0, 0, 0)], dtype=np.int64)
    addresses = (memory.ctypes.data, 0, 0, instructions.ctypes.data)
    described = np.array([*addresses, len(code.instructions)], dtype=np.int64)
    return None if interpreter()(described.ctypes.data)(0) else memory.tolist()


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


LEAST, LARGEST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("op", "a", "b"),
    [
        (Op.MUL, 2**61, 8),
        (Op.MUL, LEAST, -1),
        (Op.ADD, LARGEST, 1),
        (Op.SUB, LEAST, 1),
        (Op.DIV, LEAST, -1),
        (Op.DIV, 3, 0),
        (Op.MOD, 3, 0),
    ],
)
def test_what_does_not_fit_into_a_word_is_undefined(op: Op, a: int, b: int) -> None:
    code = HostCode()
    one, other = code.variable(), code.variable()
    code.compute(op, one, other)
    words = [a, b, *code.words[2:]]
    assert in_python(code, words) is None
    assert native(code, words) is None


@pytest.mark.parametrize("size", [2**48 + 1, 2**62, LARGEST])
def test_a_temporary_larger_than_memory_is_undefined(size: int) -> None:
    code = HostCode()
    value = code.variable()
    code.layout([(0, 1, value), (0, 1, value), (1, 2, value)], 64)
    words = [size, *code.words[1:]]
    assert in_python(code, words) is None
    assert native(code, words) is None
