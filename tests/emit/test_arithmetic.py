from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch

from adjoint.loops.expressions import (
    Cast,
    Name,
    apply,
    constant,
    integer,
)
from adjoint.loops.operators import MATH, OPERATORS
from adjoint.loops.statements import (
    Accumulator,
    Kernel,
    Mapping,
    Store,
    Update,
)
from adjoint.runtime.code import NativeFunction
from tests.kernels import (
    N,
    at,
    call,
    compiled,
    kernel,
    meaning,
    over,
    pointwise,
    run,
    same,
    ulps,
)

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [torch.bool, *INTEGERS, *FLOATS]

ANY = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "minimum", "maximum", "select"])
NUMBERS = frozenset(["add", "sub", "mul", "neg", "abs", "fmod"])
OF_FLOATS = frozenset(["div", "sqrt", "copysign"]) | (MATH - {"fmod"})
OF_INTEGERS = frozenset(
    ["quotient", "floordiv", "mod", "and", "or", "xor", "not", "shift_left", "shift_right"]
)
ROUNDING = frozenset(["floor", "ceil", "trunc", "round"])

# How far a math function may be from the true value, rounded.
ULPS = {torch.float16: 1, torch.bfloat16: 1, torch.float32: 2, torch.float64: 4}


def dtypes_of(operator: str) -> list[torch.dtype]:
    if operator in ANY:
        return DTYPES
    if operator in NUMBERS | ROUNDING:
        return [*INTEGERS, *FLOATS]
    if operator in OF_FLOATS:
        return FLOATS
    if operator == "philox":
        return [torch.int64]
    assert operator in OF_INTEGERS, operator
    return [torch.bool, *INTEGERS] if operator in ("and", "or", "xor", "not") else INTEGERS


# `within` ends the process where it does not hold.
CASES = [(name, dtype) for name in OPERATORS if name != "within" for dtype in dtypes_of(name)]


def is_quick(operator: str, dtype: torch.dtype) -> bool:
    """Functions of one type each, some of all: they are long, and are tested by themselves."""
    return operator not in MATH - {"exp", "pow", "fmod"} or dtype == torch.float32


QUICK = [case for case in CASES if is_quick(*case)]
LONG = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if not is_quick(*case)]


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at which types differ from one another, and from the real numbers."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        known = [0, 1, 2, 3, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1]
        if dtype != torch.uint8:
            known += [-1, -2, -3, -7, -100]
        return torch.tensor(known, dtype=dtype)
    limits_ = torch.finfo(dtype)
    known_ = [0.0, 0.5, 1.0, 1.5, 2.5, 3.1, 0.1, 87.0, 1e-3, 1 / 3, limits_.max, limits_.tiny]
    known_ += [limits_.tiny / 4, limits_.smallest_normal * 1.5, 1 + limits_.eps, math.inf]
    return torch.tensor([*known_, *(-x for x in known_), math.nan], dtype=dtype)


def operands(operator: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """All pairs of special numbers; of math functions, the numbers themselves."""
    values = special(dtype)
    if OPERATORS[operator].arity == 1:
        return [values]
    pairs = torch.tensor(list(itertools.product(range(len(values)), repeat=2)))
    x, y = values[pairs[:, 0]], values[pairs[:, 1]]
    if operator == "select":
        return [(torch.arange(len(x)) % 3 == 0), x, y]
    if operator == "philox":
        return [x, y, y.roll(5), torch.arange(len(x)) % 3]
    return [x, y]


def kernel_of(operator: str, dtype: torch.dtype) -> Kernel:
    reads = {f"x{i}": t.dtype for i, t in enumerate(operands(operator, dtype))}
    value = apply(operator, *(at(name, kind) for name, kind in reads.items()))
    return pointwise(value, reads, f"{operator}_{str(dtype).removeprefix('torch.')}")


@functools.cache
def native(quick: bool) -> dict[tuple[str, torch.dtype], tuple[Kernel, NativeFunction]]:
    """Operators of the types they take, in one module."""
    cases = [case for case in CASES if is_quick(*case) == quick]
    kernels = [kernel_of(name, dtype) for name, dtype in cases]
    return dict(zip(cases, zip(kernels, compiled(kernels), strict=True), strict=True))


def computed(operator: str, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    made, address = native(is_quick(operator, dtype))[operator, dtype]
    given = operands(operator, dtype)
    buffers = {f"x{i}": tensor for i, tensor in enumerate(given)}
    out = torch.zeros(len(given[-1]), dtype=made.buffers[-1].dtype)
    call(address, made, {**buffers, "out": out}, {"n": len(out)})
    return {**buffers, "out": torch.zeros_like(out)}, out


@pytest.mark.parametrize(("operator", "dtype"), [*QUICK, *LONG])
def test_an_operator_is_what_it_means(operator: str, dtype: torch.dtype) -> None:
    buffers, out = computed(operator, dtype)
    expected = meaning(kernel_of(operator, dtype), buffers, {"n": len(out)})["out"]
    if operator in MATH and dtype.is_floating_point:
        assert ulps(out, expected) <= ULPS[dtype]
        # The sign of a zero is exact.
        zero = expected == 0
        assert torch.equal(out[zero].signbit(), expected[zero].signbit())
    else:
        assert same(out, expected)


EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "select": torch.where,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "copysign": torch.copysign,
}


@pytest.mark.parametrize(("operator", "dtype"), [case for case in QUICK if case[0] in EAGER])
def test_an_operator_is_torchs(operator: str, dtype: torch.dtype) -> None:
    buffers, out = computed(operator, dtype)
    given = [tensor for name, tensor in buffers.items() if name != "out"]
    eager = EAGER[operator](*given)
    # Eager's own square root of doubles is not always the nearest number.
    assert same(out, eager) or (operator == "sqrt" and ulps(out, eager) <= 1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("operator", ["quotient", "floordiv", "mod", "fmod"])
def test_integer_division_is_torchs(operator: str, dtype: torch.dtype) -> None:
    eager: dict[str, Callable[..., torch.Tensor]] = {
        "quotient": functools.partial(torch.div, rounding_mode="trunc"),
        "floordiv": functools.partial(torch.div, rounding_mode="floor"),
        "mod": torch.remainder,
        "fmod": torch.fmod,
    }
    buffers, out = computed(operator, dtype)
    # Eager itself stops the process on the least integer divided by -1.
    defined = (buffers["x1"] != 0) & (buffers["x1"] != (2 if dtype == torch.uint8 else -1))
    x, y = buffers["x0"][defined], buffers["x1"][defined]
    assert torch.equal(out[defined], eager[operator](x, y))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("operator", ["minimum", "maximum"])
def test_extremes_are_torchs_but_for_the_sign_of_zero(operator: str, dtype: torch.dtype) -> None:
    buffers, out = computed(operator, dtype)
    eager = getattr(torch, operator)(buffers["x0"], buffers["x1"])
    torch.testing.assert_close(out, eager, rtol=0, atol=0, equal_nan=True)


CASTS = [(before, after) for before in DTYPES for after in DTYPES if before != after]


@functools.cache
def native_casts() -> dict[tuple[torch.dtype, torch.dtype], tuple[Kernel, NativeFunction]]:
    kernels = [
        pointwise(Cast(at("x", before), after), {"x": before}, f"cast{number}")
        for number, (before, after) in enumerate(CASTS)
    ]
    return dict(zip(CASTS, zip(kernels, compiled(kernels), strict=True), strict=True))


@pytest.mark.parametrize(("before", "after"), CASTS)
def test_a_cast_is_torchs(before: torch.dtype, after: torch.dtype) -> None:
    x = special(before)
    if before.is_floating_point and not after.is_floating_point and after != torch.bool:
        # What is out of range depends on the machine, in eager as well.
        low = -(2.0**31) if after != torch.uint8 else 0
        x = x[x.isfinite() & (x >= low) & (x.abs() < torch.iinfo(after).max)]
    made, address = native_casts()[before, after]
    buffers = {"x": x, "out": torch.zeros(len(x), dtype=after)}
    expected = meaning(made, buffers, {"n": len(x)})["out"]
    call(address, made, buffers, {"n": len(x)})
    assert same(buffers["out"], x.to(after))
    assert same(expected, x.to(after))


@pytest.mark.parametrize("after", HALVES)
def test_halves_round_to_the_nearest_and_ties_to_even(after: torch.dtype) -> None:
    bits = torch.arange(-(2**31), 2**31, 2**17 + 4093, dtype=torch.int64).to(torch.int32)
    ties = (torch.arange(0, 2**16, 3, dtype=torch.int32) << 16) + 2**15
    x = torch.cat([bits, ties]).view(torch.float32)
    buffers = {"x": x, "out": torch.zeros(len(x), dtype=after)}
    made = pointwise(Cast(at("x", torch.float32), after), {"x": torch.float32})
    assert same(run(made, buffers, {"n": len(x)})["out"], x.to(after))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, -math.inf, math.nan, 1e-40, 65504.0])
def test_a_constant_is_the_nearest_number(value: float, dtype: torch.dtype) -> None:
    made = pointwise(constant(value, dtype), {})
    expected = torch.full((3,), value, dtype=torch.float64).to(dtype)
    assert same(run(made, {"out": torch.zeros(3, dtype=dtype)}, {"n": 3})["out"], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("operator", ["minimum", "maximum"])
@pytest.mark.parametrize("values", [[1.0, math.nan, 2.0], [math.inf, -math.inf], [3.0, -1.0, 2.0]])
def test_a_reduction_keeps_nan(operator: str, dtype: torch.dtype, values: list[float]) -> None:
    start = constant(math.inf if operator == "minimum" else -math.inf, dtype)
    made = kernel(
        [
            Accumulator("best", start),
            over(N, Update("best", operator, at("x", dtype)), mapping=Mapping.VECTOR),
            Store("out", integer(0), Name("best", dtype)),
        ],
        {"x": dtype},
        {"out": dtype},
    )
    x = torch.tensor(values * 20, dtype=dtype)
    out = run(made, {"x": x, "out": torch.zeros(1, dtype=dtype)}, {"n": len(x)})["out"][0]
    eager = x.amin() if operator == "minimum" else x.amax()
    torch.testing.assert_close(out, eager, rtol=0, atol=0, equal_nan=True)
