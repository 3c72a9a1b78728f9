import math
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import adjoint
from adjoint.rules.pointwise import PARTIALS, RECIPROCALS
from tests.differentiation import bridged, check
from tests.rules.rows import Domain, Row, agrees, has_rule, real, targets

ONE, TWO, THREE = [(4,)], [(3, 4), (4,)], [(3, 4), (4,), (3, 1)]


def unary(names: str, domain: Domain = Domain.REAL, complex: bool = True) -> list[Row]:
    return [Row(name, getattr(torch, name), ONE, domain, complex) for name in names.split()]


ROWS = [
    *unary("neg exp expm1 sin cos tanh sigmoid sinh cosh reciprocal square"),
    *unary("exp2 erf erfc digamma lgamma abs relu", complex=False),
    *unary("sqrt rsqrt log log2 log10 log1p tan atan asinh", Domain.POSITIVE),
    *unary("asin acos atanh", Domain.UNIT),
    *unary("erfinv", Domain.UNIT, complex=False),
    Row("abs-complex", torch.abs, ONE, complex=True),
    Row("silu", torch.nn.functional.silu, ONE),
    Row("mish", torch.nn.functional.mish, ONE),
    Row("add", lambda x, y: torch.add(x, y, alpha=3), TWO, complex=True),
    Row("sub", lambda x, y: torch.sub(x, y, alpha=3), TWO, complex=True),
    Row("rsub", lambda x, y: torch.rsub(x, y, alpha=3), TWO, complex=True),
    Row("add-number", lambda x: x + 2, ONE, complex=True),
    Row("sub-number", lambda x: 2 - x, ONE, complex=True),
    Row("mul", torch.mul, TWO, complex=True),
    Row("mul-number", lambda x: x * 3, ONE, complex=True),
    Row("div", torch.div, TWO, complex=True),
    Row("div-number", lambda x: x / 3, ONE, complex=True),
    Row("pow-number", lambda x: x**3, ONE, complex=True),
    Row("pow-square", lambda x: x**2, ONE, complex=True),
    Row("pow-half", lambda x: x**0.5, ONE, Domain.POSITIVE),
    Row("pow", torch.pow, TWO, Domain.POSITIVE, complex=True),
    Row("pow-of-number", lambda x: 2.5**x, ONE, complex=True),
    Row("atan2", torch.atan2, TWO),
    Row("hypot", torch.hypot, TWO),
    Row("polar", torch.polar, TWO, Domain.POSITIVE),
    Row("polygamma", lambda x: torch.polygamma(1, x), ONE, Domain.POSITIVE),
    Row("maximum", torch.maximum, TWO),
    Row("minimum", torch.minimum, TWO),
    Row("clamp", lambda x: x.clamp(-0.5, 0.5), ONE),
    Row("clamp-min", lambda x: x.clamp(min=-0.5), ONE),
    Row("clamp-max", lambda x: x.clamp(max=0.5), ONE),
    Row("where", lambda x, y: torch.where(y > 0, x, y), TWO),
    Row("masked-fill", lambda x: x.masked_fill(x > 0, 2), ONE),
    Row("masked-fill-tensor", lambda x, y: x.masked_fill(x > 0, y.sum()), [(3,), (1,)]),
    Row("lerp", torch.lerp, THREE, complex=True),
    Row("lerp-number", lambda x, y: torch.lerp(x, y, 0.3), TWO, complex=True),
    Row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=2), THREE, complex=True),
    Row("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=2), THREE, complex=True),
    Row("fmod", lambda x, y: torch.fmod(x, y), TWO),
    Row("fmod-number", lambda x: torch.fmod(x, 0.7), ONE),
    Row("remainder", lambda x, y: torch.remainder(x, y), TWO),
    Row("remainder-number", lambda x: torch.remainder(x, 0.7), ONE),
    Row("to", lambda x: x.to(torch.float32).to(torch.float64), ONE),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


def at(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.abs, [at(0.0, -0.0)]),
        (torch.relu, [at(0.0, -0.0)]),
        (torch.maximum, [at(1.0, 2.0, math.nan), at(1.0, 3.0, 1.0)]),
        (torch.minimum, [at(1.0, 2.0, math.nan), at(1.0, 3.0, 1.0)]),
        (lambda x: x.clamp(0.0, 1.0), [at(0.0, 1.0, math.nan, 2.0)]),
        (torch.pow, [at(0.0, 0.0, 2.0, -2.0), at(0.0, 2.0, 0.0, 2.0)]),
        (lambda x: x**0, [at(0.0, 1.0)]),
        (lambda x: x**1, [at(0.0, 1.0)]),
        (lambda x: 0.0**x, [at(0.0, 1.0, 2.0)]),
        (torch.atan2, [at(0.0, 0.0), at(0.0, -1.0)]),
        (torch.sqrt, [at(0.0)]),
    ],
    ids=[
        "abs",
        "relu",
        "maximum",
        "minimum",
        "clamp",
        "pow",
        "x**0",
        "x**1",
        "0**x",
        "atan2",
        "sqrt",
    ],
)
def test_ties_and_kinks_are_eagers(function: object, inputs: list[torch.Tensor]) -> None:
    assert callable(function)
    check(function, inputs, 1)


def test_a_length_that_is_zero_or_negative_has_a_direction() -> None:
    """In eager's derivative it has none, or the opposite one."""
    inputs = [at(0.0, -2.0, 2.0), at(1.0, 2.0, 3.0)]
    compiled = bridged(torch.polar, *inputs)
    assert torch.autograd.gradcheck(compiled, inputs)
    assert torch.autograd.gradgradcheck(compiled, inputs)


def test_each_row_of_the_tables_is_sampled() -> None:
    seen: set[object] = set()
    for row in ROWS:
        seen |= targets(bridged(row.function, *row.inputs()).captured)
    emitted_only = {"rsub.Scalar", "square.default", "add.Scalar", "sub.Scalar"}
    emitted_only |= {"mul.Scalar", "div.Scalar"}
    missing = {str(op).removeprefix("aten.") for op in {*PARTIALS, *RECIPROCALS} - seen}
    assert missing <= emitted_only


def test_a_dropped_element_has_no_derivative() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * x

    x = real(30)
    torch.manual_seed(0)
    wanted = torch.autograd.grad(function(x).sum(), x)
    compiled = bridged(function, x)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), wanted)


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_derivatives_of_a_power_end_where_eagers_do(exponent: int) -> None:
    def orders(function: Any) -> list[torch.Tensor]:
        x = torch.tensor([0.5, -2.0], requires_grad=True)
        found = [function(x)]
        while found[-1].requires_grad:
            found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
        return found

    def power(x: torch.Tensor) -> torch.Tensor:
        return x**exponent

    example = torch.zeros(2, requires_grad=True)
    mine, eagers = orders(bridged(power, example)), orders(power)
    assert len(mine) == len(eagers) == exponent + 2
    torch.testing.assert_close(mine, eagers)


def test_powers_along_their_exponents_at_zero() -> None:
    zero, two = torch.zeros(2, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64)
    for function, at in ((lambda p: zero**p, two), (lambda x: x**zero, zero)):
        for transform in (torch.func.jvp, adjoint.jvp):
            slope = transform(function, (at,), (two,))[1]
            torch.testing.assert_close(slope, zero)


def test_powers_of_a_number_that_is_known_when_the_program_runs() -> None:
    """In as few graphs as Dynamo makes: before torch 2.12 it asks whether the base is 2 or 1."""
    compilations, least = CompileCounterWithBackend("adjoint"), CompileCounterWithBackend("eager")

    def power(x: torch.Tensor, base: float) -> torch.Tensor:
        return base**x

    compiled = torch.compile(power, backend=compilations, dynamic=True)
    x = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64, requires_grad=True)
    bases = (2.0, 3.5, 0.25, 0.0, 1.0, -2.0)
    for base in bases:
        found = []
        for function in (power, compiled):
            out = function(x, base)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            found.append((out, slope, *torch.autograd.grad(slope.sum(), x)))
        torch.testing.assert_close(found[1], found[0], equal_nan=True)
    torch._dynamo.reset()
    traced = torch.compile(power, backend=least, dynamic=True)
    for base in bases:
        traced(x, base)
    assert compilations.frame_count == least.frame_count
