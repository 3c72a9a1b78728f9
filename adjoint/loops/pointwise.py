"""Pointwise operators: the formula of each, for one element.

The tensor arguments of a formula are expressions of one dtype: half types are computed in float32
and rounded once, as in eager.  Python numbers among the arguments stay Python numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from adjoint.dtypes import HALVES
from adjoint.loops.expressions import Expression, apply, cast, constant

aten = torch.ops.aten

Formula: TypeAlias = Callable[..., Expression]

Operand: TypeAlias = Expression | float
"""An argument of a formula."""


@dataclass(frozen=True)
class Pointwise:
    """A formula, and how its arguments are promoted."""

    formula: Formula
    compares: bool = False
    """Arguments are promoted among themselves, and the result is bool."""
    typed: bool = False
    """The formula takes the dtype of the result, as `result`."""
    divides: int | None = None
    """The position of an integer divisor: eager raises if it is zero."""
    rounds: bool = False
    """Python numbers are rounded to the dtype of the tensors, as in comparisons; elsewhere they
    are rounded to the dtype in which the result is computed."""


def unary(name: str) -> Formula:
    return lambda x: apply(name, x)


def binary(name: str) -> Formula:
    return lambda x, y: apply(name, x, _like(y, x))


def _like(value: Operand, other: Expression) -> Expression:
    return constant(value, other.dtype) if isinstance(value, (int, float)) else value


def where(condition: Expression, yes: Operand, no: Operand) -> Expression:
    if isinstance(yes, (int, float)):
        assert not isinstance(no, (int, float)), "one of the branches has a dtype"
        return apply("select", condition, constant(yes, no.dtype), no)
    return apply("select", condition, yes, _like(no, yes))


def is_nan(x: Expression) -> Expression:
    return x.differs(x) if x.dtype.is_floating_point else constant(False, torch.bool)


def sigmoid(x: Expression) -> Expression:
    return apply("sigmoid", x)


def exp(x: Expression) -> Expression:
    return apply("exp", x)


def tanh(x: Expression) -> Expression:
    return apply("tanh", x)


def _sum(x: Expression, y: Operand, alpha: float = 1) -> Expression:
    term = _like(y, x)
    return x + (term if alpha == 1 else term * alpha)


def _difference(x: Expression, y: Operand, alpha: float = 1) -> Expression:
    term = _like(y, x)
    return x - (term if alpha == 1 else term * alpha)


def _reversed_difference(x: Expression, y: Operand, alpha: float = 1) -> Expression:
    return _like(y, x) - (x if alpha == 1 else x * alpha)


def _product(x: Expression, y: Operand) -> Expression:
    return apply("and", x, _like(y, x)) if x.dtype == torch.bool else x * y


def _divided(x: Expression, y: Operand, rounding_mode: str | None = None) -> Expression:
    by = _like(y, x)
    if rounding_mode is None:
        return x / by
    if not x.dtype.is_floating_point:
        return apply("quotient" if rounding_mode == "trunc" else "floordiv", x, by)
    if rounding_mode == "trunc":
        return apply("trunc", x / by)
    return _floor_divided(x, by)


def _floor_divided(x: Expression, y: Expression) -> Expression:
    """As Python's `//`: exact where the quotient is close to an integer."""
    rest = apply("fmod", x, y)
    whole = (x - rest) / y
    uneven = apply("and", rest.differs(0), apply("xor", rest < 0, y < 0))
    whole = where(uneven, whole - 1, whole)
    floor = apply("floor", whole)
    floor = where(whole - floor > 0.5, floor + 1, floor)
    result = where(whole.equals(0), apply("copysign", constant(0, x.dtype), x / y), floor)
    return where(y.equals(0), x / y, result)


def _remainder(x: Expression, y: Operand) -> Expression:
    y = _like(y, x)
    if not x.dtype.is_floating_point:
        return apply("mod", x, y)
    rest = apply("fmod", x, y)
    wrong = apply("and", rest.differs(0), apply("xor", rest < 0, y < 0))
    return where(wrong, rest + y, rest)


def _power(x: Expression, y: Operand, result: torch.dtype) -> Expression:
    """Small integer exponents are products, as in eager."""
    # Eager takes no roots of float16: they differ at -0 and at -inf.
    if result == torch.float16 and y in (0.5, -0.5):
        return apply("pow", x, _like(y, x))
    if isinstance(y, (int, float)):
        if y == 2:
            return x * x
        if y == 3:
            return x * x * x
        if x.dtype.is_floating_point:
            simple: dict[float, Callable[[], Expression]] = {
                0.0: lambda: constant(1, x.dtype),
                1.0: lambda: x,
                0.5: lambda: apply("sqrt", x),
                -0.5: lambda: 1 / apply("sqrt", x),
                -1.0: lambda: 1 / x,
                -2.0: lambda: 1 / (x * x),
            }
            if float(y) in simple:
                return simple[float(y)]()
        elif isinstance(y, int) and y >= 0:
            return _whole_power(x, y)
    return apply("pow", x, _like(y, x))


def _whole_power(x: Expression, exponent: int) -> Expression:
    """By repeated squaring."""
    one = constant(1, x.dtype)
    power: Expression = one
    while exponent:
        if exponent & 1:
            power = x if power is one else power * x
        exponent >>= 1
        if exponent:
            x = x * x
    return power


def _clamp(x: Expression, low: Operand | None = None, high: Operand | None = None) -> Expression:
    if low is not None:
        x = apply("maximum", x, _like(low, x))
    if high is not None:
        x = apply("minimum", x, _like(high, x))
    return x


def _sign(x: Expression) -> Expression:
    if x.dtype == torch.bool:
        return x
    return cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


def _gelu(x: Expression, approximate: str = "none") -> Expression:
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * (math.sqrt(2 / math.pi))
        return x * 0.5 * (tanh(inner) + 1)
    return x * 0.5 * (apply("erf", x * math.sqrt(0.5)) + 1)


def _gelu_backward(cotangent: Expression, x: Expression, approximate: str = "none") -> Expression:
    if approximate == "tanh":
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = tanh((x + x * x * x * cubic) * scale)
        inner = (x * x * (3 * cubic) + 1) * scale
        left = (t + 1) * 0.5
        return cotangent * (left + x * 0.5 * (1 - t * t) * inner)
    cumulative = (apply("erf", x * math.sqrt(0.5)) + 1) * 0.5
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return cotangent * (cumulative + x * density)


def _silu_backward(cotangent: Expression, x: Expression) -> Expression:
    s = sigmoid(x)
    return cotangent * s * (x * (1 - s) + 1)


def _softplus(x: Expression, beta: float = 1, threshold: float = 20) -> Expression:
    return where(x * beta > threshold, x, apply("log1p", exp(x * beta)) / beta)


def _softplus_backward(
    cotangent: Expression, x: Expression, beta: float, threshold: float
) -> Expression:
    z = exp(x * beta)
    return where(x * beta > threshold, cotangent, cotangent * z / (z + 1))


def _elu(x: Expression, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expression:
    return where(x > 0, x * scale, apply("expm1", x * input_scale) * (alpha * scale))


def _elu_backward(
    cotangent: Expression,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Expression,
) -> Expression:
    if is_result:
        low = cotangent * input_scale * (x + alpha * scale)
    else:
        low = cotangent * input_scale * alpha * scale * exp(x * input_scale)
    return where(x <= 0, low, cotangent * scale)


def _leaky_relu_backward(
    cotangent: Expression, x: Expression, slope: float, is_result: bool
) -> Expression:
    return where(x > 0, cotangent, cotangent * slope)


def _hardtanh_backward(cotangent: Expression, x: Expression, low: float, high: float) -> Expression:
    return where(apply("or", x <= low, x >= high), constant(0, x.dtype), cotangent)


def _threshold_backward(cotangent: Expression, x: Expression, threshold: float) -> Expression:
    return where(x <= threshold, constant(0, x.dtype), cotangent)


def _hardsigmoid(x: Expression) -> Expression:
    return _clamp(x + 3, 0, 6) / 6


def _hardswish(x: Expression) -> Expression:
    return x * _clamp(x + 3, 0, 6) / 6


def _mish(x: Expression) -> Expression:
    return x * tanh(_softplus(x))


def _lerp(start: Expression, end: Expression, weight: Operand) -> Expression:
    weight = _like(weight, start)
    near = start + weight * (end - start)
    far = end - (end - start) * (1 - weight)
    return where(apply("abs", weight) < 0.5, near, far)


def _logical(name: str) -> Formula:
    def formula(*args: Expression) -> Expression:
        return apply(name, *(cast(arg, torch.bool) for arg in args))

    return formula


def _xlogy(x: Expression, y: Operand) -> Expression:
    y = _like(y, x)
    plain = where(x.equals(0), constant(0, x.dtype), x * apply("log", y))
    return where(is_nan(y), y, plain)


def _logaddexp(x: Expression, y: Expression) -> Expression:
    high = apply("maximum", x, y)
    infinite = apply("and", x.equals(y), apply("abs", x).equals(math.inf))
    return where(infinite, x, high + apply("log1p", exp(-apply("abs", x - y))))


def _nan_to_num(
    x: Expression,
    nan: float | None = None,
    high: float | None = None,
    low: float | None = None,
    *,
    result: torch.dtype,
) -> Expression:
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(result)
    fixed = where(is_nan(x), constant(nan or 0.0, x.dtype), x)
    fixed = where(
        x.equals(math.inf), constant(limits.max if high is None else high, x.dtype), fixed
    )
    return where(x.equals(-math.inf), constant(limits.min if low is None else low, x.dtype), fixed)


def _is_infinite(x: Expression) -> Expression:
    if not x.dtype.is_floating_point:
        return constant(False, torch.bool)
    return apply("abs", x).equals(math.inf)


def _has_sign(x: Expression) -> Expression:
    if not x.dtype.is_floating_point:
        return constant(False, torch.bool) if x.dtype == torch.bool else x < 0
    return apply("copysign", constant(1, x.dtype), x) < 0


def _masked_fill(x: Expression, mask: Expression, value: Operand) -> Expression:
    return where(cast(mask, torch.bool), _like(value, x), x)


def _where(condition: Expression, yes: Operand, no: Operand) -> Expression:
    return where(cast(condition, torch.bool), yes, no)


def _sinc(x: Expression) -> Expression:
    angle = x * math.pi
    return where(x.equals(0), constant(1, x.dtype), apply("sin", angle) / angle)


def _logit(x: Expression, eps: float | None = None) -> Expression:
    x = x if eps is None else _clamp(x, eps, 1 - eps)
    return apply("log", x / (1 - x))


_P = Pointwise

TABLE: dict[object, Pointwise] = {
    aten.abs.default: _P(unary("abs")),
    aten.acos.default: _P(unary("acos")),
    aten.acosh.default: _P(unary("acosh")),
    aten.add.Scalar: _P(_sum),
    aten.add.Tensor: _P(_sum),
    aten.addcdiv.default: _P(lambda x, a, b, value=1: x + (a if value == 1 else a * value) / b),
    aten.addcmul.default: _P(lambda x, a, b, value=1: x + (a if value == 1 else a * value) * b),
    aten.asin.default: _P(unary("asin")),
    aten.asinh.default: _P(unary("asinh")),
    aten.atan.default: _P(unary("atan")),
    aten.atan2.default: _P(binary("atan2")),
    aten.atanh.default: _P(unary("atanh")),
    aten.bitwise_and.Scalar: _P(binary("and")),
    aten.bitwise_and.Tensor: _P(binary("and")),
    aten.bitwise_left_shift.Tensor: _P(binary("shift_left")),
    aten.bitwise_left_shift.Tensor_Scalar: _P(binary("shift_left")),
    aten.__lshift__.Tensor: _P(binary("shift_left")),
    aten.__lshift__.Scalar: _P(binary("shift_left")),
    aten.bitwise_not.default: _P(unary("not")),
    aten.bitwise_or.Scalar: _P(binary("or")),
    aten.bitwise_or.Tensor: _P(binary("or")),
    aten.bitwise_right_shift.Tensor: _P(binary("shift_right")),
    aten.bitwise_right_shift.Tensor_Scalar: _P(binary("shift_right")),
    aten.__rshift__.Tensor: _P(binary("shift_right")),
    aten.__rshift__.Scalar: _P(binary("shift_right")),
    aten.bitwise_xor.Scalar: _P(binary("xor")),
    aten.bitwise_xor.Tensor: _P(binary("xor")),
    aten.ceil.default: _P(unary("ceil")),
    aten.clamp.Tensor: _P(_clamp),
    aten.clamp.default: _P(_clamp),
    aten.clamp_max.Tensor: _P(binary("minimum")),
    aten.clamp_max.default: _P(binary("minimum")),
    aten.clamp_min.Tensor: _P(binary("maximum")),
    aten.clamp_min.default: _P(binary("maximum")),
    aten.clone.default: _P(lambda x, memory_format=None: x),
    aten.copysign.Scalar: _P(binary("copysign")),
    aten.copysign.Tensor: _P(binary("copysign")),
    aten.cos.default: _P(unary("cos")),
    aten.cosh.default: _P(unary("cosh")),
    aten.deg2rad.default: _P(lambda x: x * (math.pi / 180)),
    aten.div.Scalar: _P(_divided),
    aten.div.Scalar_mode: _P(_divided, divides=1),
    aten.div.Tensor: _P(_divided),
    aten.div.Tensor_mode: _P(_divided, divides=1),
    aten.elu.default: _P(_elu),
    aten.elu_backward.default: _P(_elu_backward),
    aten.eq.Scalar: _P(binary("eq"), compares=True),
    aten.eq.Tensor: _P(binary("eq"), compares=True),
    aten.erf.default: _P(unary("erf")),
    aten.erfc.default: _P(unary("erfc")),
    aten.erfinv.default: _P(unary("erfinv")),
    aten.exp.default: _P(exp),
    aten.exp2.default: _P(unary("exp2")),
    aten.expm1.default: _P(unary("expm1")),
    aten.floor.default: _P(unary("floor")),
    aten.floor_divide.default: _P(functools.partial(_divided, rounding_mode="floor"), divides=1),
    aten.fmod.Scalar: _P(binary("fmod"), divides=1, rounds=True),
    aten.fmod.Tensor: _P(binary("fmod"), divides=1, rounds=True),
    aten.frac.default: _P(lambda x: x - apply("trunc", x)),
    aten.ge.Scalar: _P(binary("ge"), compares=True),
    aten.ge.Tensor: _P(binary("ge"), compares=True),
    aten.gelu.default: _P(_gelu),
    aten.gelu_backward.default: _P(_gelu_backward),
    aten.gt.Scalar: _P(binary("gt"), compares=True),
    aten.gt.Tensor: _P(binary("gt"), compares=True),
    aten.hardsigmoid.default: _P(_hardsigmoid),
    aten.hardswish.default: _P(_hardswish),
    aten.hardtanh.default: _P(lambda x, low=-1, high=1: _clamp(x, low, high)),
    aten.hardtanh_backward.default: _P(_hardtanh_backward),
    aten.isinf.default: _P(_is_infinite, compares=True),
    aten.isnan.default: _P(is_nan, compares=True),
    aten.le.Scalar: _P(binary("le"), compares=True),
    aten.le.Tensor: _P(binary("le"), compares=True),
    aten.leaky_relu.default: _P(lambda x, slope=0.01: where(x > 0, x, x * slope)),
    aten.leaky_relu_backward.default: _P(_leaky_relu_backward),
    aten.lerp.Scalar: _P(_lerp),
    aten.lerp.Tensor: _P(_lerp),
    aten.log.default: _P(unary("log")),
    aten.log10.default: _P(unary("log10")),
    aten.log1p.default: _P(unary("log1p")),
    aten.log2.default: _P(unary("log2")),
    aten.logaddexp.default: _P(_logaddexp),
    aten.logical_and.default: _P(_logical("and"), compares=True),
    aten.logical_not.default: _P(_logical("not"), compares=True),
    aten.logical_or.default: _P(_logical("or"), compares=True),
    aten.logical_xor.default: _P(_logical("xor"), compares=True),
    aten.logit.default: _P(_logit),
    aten.lt.Scalar: _P(binary("lt"), compares=True),
    aten.lt.Tensor: _P(binary("lt"), compares=True),
    aten.masked_fill.Scalar: _P(_masked_fill),
    aten.masked_fill.Tensor: _P(_masked_fill),
    aten.maximum.default: _P(binary("maximum")),
    aten.minimum.default: _P(binary("minimum")),
    aten.mish.default: _P(_mish),
    aten.mul.Scalar: _P(_product),
    aten.mul.Tensor: _P(_product),
    aten.nan_to_num.default: _P(_nan_to_num, typed=True),
    aten.ne.Scalar: _P(binary("ne"), compares=True),
    aten.ne.Tensor: _P(binary("ne"), compares=True),
    aten.neg.default: _P(unary("neg")),
    aten.pow.Scalar: _P(lambda x, y: apply("pow", _like(x, y), y)),
    aten.pow.Tensor_Scalar: _P(_power, typed=True),
    aten.pow.Tensor_Tensor: _P(_power, typed=True),
    aten.rad2deg.default: _P(lambda x: x * (180 / math.pi)),
    aten.reciprocal.default: _P(lambda x: 1 / x),
    aten.relu.default: _P(lambda x: _clamp(x, low=0)),
    aten.remainder.Scalar: _P(_remainder, divides=1, rounds=True),
    aten.remainder.Tensor: _P(_remainder, divides=1, rounds=True),
    aten.round.default: _P(unary("round")),
    aten.rsqrt.default: _P(lambda x: 1 / apply("sqrt", x)),
    aten.rsub.Scalar: _P(_reversed_difference),
    aten.rsub.Tensor: _P(_reversed_difference),
    aten.sgn.default: _P(_sign),
    aten.sigmoid.default: _P(sigmoid),
    aten.sigmoid_backward.default: _P(lambda g, y: g * (1 - y) * y),
    aten.sign.default: _P(_sign),
    aten.signbit.default: _P(_has_sign, compares=True),
    aten.silu.default: _P(lambda x: x * sigmoid(x)),
    aten.silu_backward.default: _P(_silu_backward),
    aten.sin.default: _P(unary("sin")),
    aten.sinc.default: _P(_sinc),
    aten.sinh.default: _P(unary("sinh")),
    aten.softplus.default: _P(_softplus),
    aten.softplus_backward.default: _P(_softplus_backward),
    aten.sqrt.default: _P(unary("sqrt")),
    aten.square.default: _P(lambda x: x * x),
    aten.sub.Scalar: _P(_difference),
    aten.sub.Tensor: _P(_difference),
    aten.tan.default: _P(unary("tan")),
    aten.tanh.default: _P(tanh),
    aten.tanh_backward.default: _P(lambda g, y: g * (1 - y * y)),
    aten.threshold.default: _P(lambda x, t, value: where(x <= t, constant(value, x.dtype), x)),
    aten.threshold_backward.default: _P(_threshold_backward),
    aten.trunc.default: _P(unary("trunc")),
    aten.where.self: _P(_where),
    aten.xlogy.Tensor: _P(_xlogy),
    aten._to_copy.default: _P(lambda x, **kwargs: x),
    aten.positive.default: _P(lambda x: x),
}

# Positions of masks among the arguments: they are not promoted to the dtype of the result.
MASKS: dict[object, tuple[int, ...]] = {
    aten.where.self: (0,),
    aten.masked_fill.Scalar: (1,),
    aten.masked_fill.Tensor: (1,),
}


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of `dtype` are computed."""
    return torch.float32 if dtype in HALVES else dtype
