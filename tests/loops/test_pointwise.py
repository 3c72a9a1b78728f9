from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.loops.pointwise import TABLE, computed_in
from adjoint.options import Options
from tests.lowering import CLOSE, calls, check, graph_of, native_program, pairs

aten = torch.ops.aten

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64, *HALVES]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]

Call = Callable[..., torch.Tensor]

UNARY = [
    *(aten.abs, aten.acos, aten.acosh, aten.asin, aten.asinh, aten.atan, aten.atanh),
    *(aten.bitwise_not, aten.ceil, aten.clone, aten.cos, aten.cosh, aten.deg2rad, aten.elu),
    *(aten.erf, aten.erfc, aten.exp, aten.exp2, aten.expm1, aten.floor, aten.frac, aten.gelu),
    *(aten.hardsigmoid, aten.hardswish, aten.hardtanh, aten.isinf, aten.isnan, aten.leaky_relu),
    *(aten.log, aten.log10, aten.log1p, aten.log2, aten.logical_not, aten.logit, aten.mish),
    *(aten.nan_to_num, aten.neg, aten.positive, aten.rad2deg, aten.reciprocal, aten.relu),
    *(aten.round, aten.rsqrt, aten.sgn, aten.sigmoid, aten.sign, aten.signbit, aten.silu),
    *(aten.sin, aten.sinc, aten.sinh, aten.softplus, aten.sqrt, aten.square, aten.tan, aten.tanh),
    *(aten.erfinv, aten.trunc),
]

BINARY = [
    *(aten.add.Tensor, aten.atan2.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor),
    *(aten.bitwise_xor.Tensor, aten.bitwise_left_shift.Tensor, aten.bitwise_right_shift.Tensor),
    *(aten.clamp_max.Tensor, aten.clamp_min.Tensor, aten.copysign.Tensor, aten.div.Tensor),
    *(aten.eq.Tensor, aten.floor_divide.default, aten.fmod.Tensor, aten.ge.Tensor),
    *(aten.gt.Tensor, aten.le.Tensor, aten.logaddexp.default, aten.logical_and.default),
    *(aten.logical_or.default, aten.logical_xor.default, aten.lt.Tensor, aten.maximum.default),
    *(aten.minimum.default, aten.mul.Tensor, aten.ne.Tensor, aten.pow.Tensor_Tensor),
    *(aten.remainder.Tensor, aten.rsub.Tensor, aten.sub.Tensor, aten.xlogy.Tensor),
    *(aten.gelu_backward.default, aten.sigmoid_backward.default, aten.silu_backward.default),
    *(aten.tanh_backward.default, aten.__lshift__.Tensor, aten.__rshift__.Tensor),
]

WITH_NUMBER = [
    *(aten.add.Scalar, aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar),
    *(aten.clamp_max.default, aten.clamp_min.default, aten.copysign.Scalar, aten.div.Scalar),
    *(aten.eq.Scalar, aten.fmod.Scalar, aten.ge.Scalar, aten.gt.Scalar, aten.le.Scalar),
    *(aten.lt.Scalar, aten.mul.Scalar, aten.ne.Scalar, aten.pow.Tensor_Scalar),
    *(aten.remainder.Scalar, aten.rsub.Scalar, aten.sub.Scalar),
    *(aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar),
]

NUMBERS: dict[Any, list[float]] = {
    aten.pow.Tensor_Scalar: [-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 2.5],
    aten.div.Scalar: [3, 0.7, -2],
}


def shifted(op: Any, x: torch.Tensor, by: int) -> torch.Tensor:
    """Not of bools: torch has no fake kernel for them."""
    if x.dtype is torch.bool:
        raise NotImplementedError
    result: torch.Tensor = op(x, by)
    return result


# Calls of ops that are not in the lists above, or that take more arguments.
CALLS: dict[Any, list[tuple[int, Call]]] = {
    op: [(1, lambda x, op=op, by=by: shifted(op, x, by)) for by in (2, 40, -1)]
    for op in (aten.__lshift__.Scalar, aten.__rshift__.Scalar)
}
CALLS |= {
    aten._to_copy.default: [
        (1, lambda x, dtype=dtype: aten._to_copy.default(x, dtype=dtype)) for dtype in FLOATS
    ],
    aten.add.Tensor: [(2, lambda x, y: aten.add.Tensor(x, y, alpha=2))],
    aten.addcdiv.default: [(3, aten.addcdiv), (3, lambda x, a, b: aten.addcdiv(x, a, b, value=2))],
    aten.addcmul.default: [(3, aten.addcmul), (3, lambda x, a, b: aten.addcmul(x, a, b, value=2))],
    aten.clamp.default: [
        (1, lambda x: aten.clamp(x, 1, 3)),
        (1, lambda x: aten.clamp(x, min=1)),
        (1, lambda x: aten.clamp(x, max=3)),
        (1, lambda x: aten.clamp(x, 3, 1)),
    ],
    aten.clamp.Tensor: [(3, aten.clamp.Tensor), (2, lambda x, y: aten.clamp.Tensor(x, max=y))],
    aten.div.Scalar_mode: [
        (1, lambda x, mode=mode, by=by: aten.div.Scalar_mode(x, by, rounding_mode=mode))
        for mode in ("floor", "trunc", None)
        for by in (3, -2, 0.3)
    ],
    aten.div.Tensor_mode: [
        (2, lambda x, y, mode=mode: aten.div.Tensor_mode(x, y, rounding_mode=mode))
        for mode in ("floor", "trunc", None)
    ],
    aten.elu.default: [(1, lambda x: aten.elu(x, 0.7, 1.1, 1.3))],
    aten.elu_backward.default: [
        (2, lambda g, x, is_result=is_result: aten.elu_backward(g, 0.7, 1.1, 1.3, is_result, x))
        for is_result in (True, False)
    ],
    aten.gelu.default: [(1, lambda x: aten.gelu(x, approximate="tanh"))],
    aten.gelu_backward.default: [(2, lambda g, x: aten.gelu_backward(g, x, approximate="tanh"))],
    aten.hardtanh.default: [(1, lambda x: aten.hardtanh(x, -0.5, 2.5))],
    aten.hardtanh_backward.default: [(2, lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0))],
    aten.leaky_relu.default: [(1, lambda x: aten.leaky_relu(x, 0.2))],
    aten.leaky_relu_backward.default: [
        (2, lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False))
    ],
    aten.lerp.Scalar: [(2, lambda x, y, w=w: aten.lerp.Scalar(x, y, w)) for w in (0.2, 0.5, 1.7)],
    aten.lerp.Tensor: [(3, aten.lerp.Tensor)],
    aten.logit.default: [(1, lambda x: aten.logit(x, 0.2))],
    aten.masked_fill.Scalar: [(1, lambda x: aten.masked_fill.Scalar(x, x > 1, 3))],
    aten.masked_fill.Tensor: [
        (1, lambda x: aten.masked_fill.Tensor(x, x > 1, torch.ones([], dtype=x.dtype)))
    ],
    aten.nan_to_num.default: [(1, lambda x: aten.nan_to_num(x, 1.5, 2.5, -3.5))],
    aten.pow.Scalar: [(1, lambda x, b=b: aten.pow.Scalar(b, x)) for b in (2, 0.3, 1)],
    aten.rsub.Tensor: [(2, lambda x, y: aten.rsub.Tensor(x, y, alpha=3))],
    aten.softplus.default: [(1, lambda x: aten.softplus(x, 2.0, 5.0))],
    aten.softplus_backward.default: [(2, lambda g, x: aten.softplus_backward(g, x, 2.0, 5.0))],
    aten.sub.Tensor: [(2, lambda x, y: aten.sub.Tensor(x, y, alpha=2))],
    aten.threshold.default: [(1, lambda x: aten.threshold(x, 1, 7))],
    aten.threshold_backward.default: [(2, lambda g, x: aten.threshold_backward(g, x, 1))],
    aten.where.self: [(2, lambda x, y: aten.where.self(x > y, x, y))],
}

SAMPLES: dict[Any, list[tuple[int, Call]]] = {}
for packet in UNARY:
    SAMPLES.setdefault(packet.default, []).append((1, packet.default))
for op in BINARY:
    SAMPLES.setdefault(op, []).append((2, op))
for op in WITH_NUMBER:
    for number in NUMBERS.get(op, [2, -3, 1.5, 0.3]):
        SAMPLES.setdefault(op, []).append((1, lambda x, op=op, number=number: op(x, number)))
for op, rows in CALLS.items():
    SAMPLES.setdefault(op, []).extend(rows)

# Computed by the same instructions as eager's, rounded once.
EXACT = {
    *(aten.abs, aten.add, aten.bitwise_and, aten.bitwise_not, aten.bitwise_or, aten.bitwise_xor),
    *(aten.ceil, aten.clamp, aten.clamp_max, aten.clamp_min, aten.clone, aten.copysign, aten.div),
    *(aten.floor, aten.frac, aten.hardtanh, aten.maximum, aten.minimum, aten.mul, aten.neg),
    *(aten.relu, aten.round, aten.rsub, aten.sub, aten.threshold, aten.trunc, aten.where),
    *(aten._to_copy, aten.sign, aten.sgn, aten.masked_fill, aten.leaky_relu, aten.nan_to_num),
}

# Eager adds a product without rounding it, where its own compiler made it so.
FUSED = {aten.add, aten.sub, aten.rsub, aten.addcmul, aten.addcdiv, aten.lerp}

# Eager's answer to NaN depends on where in memory the element lies.
NO_NAN = {aten.elu_backward, aten.hardtanh_backward}

# Eager itself returns either zero, by where in memory the element lies.
ANY_ZERO = {aten.clamp, aten.clamp_max, aten.clamp_min, aten.maximum, aten.minimum, aten.relu}
ANY_ZERO |= {aten.hardtanh, aten.hardswish}


MIXED = (aten.add.Tensor, aten.lt.Tensor, aten.pow.Tensor_Tensor, aten.where.self)


def eager_takes(call: Call, inputs: list[torch.Tensor]) -> bool:
    try:
        call(*inputs)
    except (RuntimeError, NotImplementedError, IndexError):
        return False
    return True


def test_each_op_has_a_sample() -> None:
    assert set(SAMPLES) == set(TABLE)


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float32, torch.float16, torch.int32, torch.bool],
        pytest.param([torch.float64, torch.bfloat16, *INTEGERS], marks=pytest.mark.slow),
    ],
    ids=["quick", "rest"],
)
@pytest.mark.parametrize("op", TABLE, ids=str)
def test_an_op_is_what_eager_computes(op: Any, dtypes: list[torch.dtype]) -> None:
    cases = [(call, sample(op, [dtype] * n)) for dtype in dtypes for n, call in SAMPLES[op]]
    compared(op, [(call, inputs) for call, inputs in cases if eager_takes(call, inputs)])


def sample(op: Any, dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    packet, inputs = op.overloadpacket, pairs(*dtypes)
    for place, tensor in enumerate(inputs):
        if tensor.dtype.is_floating_point:
            if packet in NO_NAN:
                inputs[place] = tensor.nan_to_num(1.0)
            if packet in (aten.fmod, aten.remainder):
                # Eager gives NaN where the quotient is too large, and C does not.
                small = (tensor != 0) & (tensor.abs() < 1e-4)
                large = tensor.isfinite() & (tensor.abs() > 100)
                inputs[place] = tensor.masked_fill(small, 0.25).masked_fill(large, 97.0)
            if packet in FUSED:
                inputs[place] = tensor.masked_fill(tensor.abs() > 100, 5.0)
    return inputs


@pytest.mark.parametrize(
    "op",
    [
        op if op in MIXED else pytest.param(op, marks=pytest.mark.slow)
        for op in BINARY
        if "backward" not in op.name()
    ],
    ids=str,
)
def test_types_are_promoted(op: Any) -> None:
    mixed = [
        (torch.float32, torch.float64),
        (torch.int32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.uint8, torch.int8),
        (torch.bool, torch.int64),
        (torch.float64, torch.bool),
    ]
    cases = [(op, sample(op, list(dtypes))) for dtypes in mixed]
    compared(op, [(call, inputs) for call, inputs in cases if eager_takes(call, inputs)])


def compared(op: Any, cases: list[tuple[Call, list[torch.Tensor]]]) -> None:
    """All calls, as one graph."""
    if not cases:
        return
    flat = [tensor for _, inputs in cases for tensor in inputs]

    def every(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        return [call(*(next(rest) for _ in inputs)) for call, inputs in cases]

    program = native_program(graph_of(every, flat), Options())
    eager = every(*flat)
    ours = eager if program is None else program(list(flat))
    for (call, inputs), one, other in zip(cases, ours, eager, strict=True):
        kinds = [str(tensor.dtype) for tensor in inputs]
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        wrong = ~as_good(op, call, inputs, one, other)
        at = [tensor[wrong].tolist()[:6] for tensor in inputs]
        got, expected = one[wrong].tolist()[:6], other[wrong].tolist()[:6]
        assert not wrong.any(), f"{op} of {kinds} at {at}: {got}, not {expected}"


def as_good(
    op: Any, call: Call, inputs: list[torch.Tensor], ours: torch.Tensor, eager: torch.Tensor
) -> torch.Tensor:
    """Where our value is eager's, or as near as eager's to the one that eager finds in double."""
    packet = op.overloadpacket
    same = (ours == eager) | ((ours != ours) & (eager != eager))
    if not ours.dtype.is_floating_point:
        return same
    if packet not in ANY_ZERO:
        same &= (ours != 0) | (ours.signbit() == eager.signbit())
    if packet in EXACT - FUSED:
        return same
    rtol, atol = CLOSE[ours.dtype]
    near = same | torch.isclose(ours, eager, rtol, atol)
    wide = [t.double() if t.dtype.is_floating_point else t for t in inputs]
    true = call(*wide).double()
    near |= torch.isclose(ours, true.to(ours.dtype), rtol, atol, equal_nan=True)
    error = (ours.double() - true).abs()
    near |= error <= 4 * (eager.double() - true).abs()
    if packet in FUSED:
        scale = torch.ones_like(true)
        for tensor in inputs:
            scale *= 1 + tensor.double().abs()
        near |= error <= 4 * torch.finfo(ours.dtype).eps * scale
    return near


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_compared_with_the_nearest_half(dtype: torch.dtype) -> None:
    numbers = [0.3, 0.7, 2.6, 2049]
    ops = [aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar]
    x = torch.tensor([*numbers, -0.3], dtype=dtype)
    program = check(lambda x: [op(x, n) for op in [*ops, aten.ge.Scalar] for n in numbers], x)
    assert not calls(program.plan)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_whole_quotients_of_halves_are_rounded_as_eager_does(dtype: torch.dtype) -> None:
    """By many numbers, by one that is a tensor, and by one that is not."""
    torch.manual_seed(0)
    x, y = (torch.randn(2, 3000) * torch.tensor([[30.0], [1.0]])).to(dtype)
    quotients: list[Callable[..., Any]] = [
        functools.partial(aten.div, rounding_mode="floor"),
        functools.partial(aten.div, rounding_mode="trunc"),
        aten.fmod,
        aten.remainder,
    ]

    def every(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [quotient(x, by) for by in (y, y[:1], y[0], 3, -2, 0.3) for quotient in quotients]

    check(every, x, y, exact=True)


def test_half_types_are_computed_in_single() -> None:
    assert [computed_in(dtype) for dtype in FLOATS[1:]] == [
        torch.float64,
        torch.float32,
        torch.float32,
    ]
