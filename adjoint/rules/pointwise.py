"""Pointwise ops: each element of the result depends on one element of each argument.

Most rules are rows of a table of partial derivatives.  The cotangent is multiplied by the conjugate
of the partial derivative, torch's convention for complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from adjoint.open_types import OpArgument, TorchValue
from adjoint.rules.registry import VJPS, Cotangents, Rule, composition, vjp
from adjoint.torch_private import symbols

aten = torch.ops.aten

Partial: TypeAlias = Callable[..., object]

# The partial derivatives of out = op(x, ...) with respect to each argument; None: it has none.
PARTIALS: dict[object, tuple[Partial | None, ...]] = {
    aten.neg.default: (lambda out, x: -1,),
    aten.add.Tensor: (lambda out, x, y, alpha=1: 1, lambda out, x, y, alpha=1: alpha),
    aten.add.Scalar: (lambda out, x, y, alpha=1: 1,),
    aten.sub.Tensor: (lambda out, x, y, alpha=1: 1, lambda out, x, y, alpha=1: -alpha),
    aten.sub.Scalar: (lambda out, x, y, alpha=1: 1,),
    aten.rsub.Scalar: (lambda out, x, y, alpha=1: -alpha,),
    aten.rsub.Tensor: (lambda out, x, y, alpha=1: -alpha, lambda out, x, y, alpha=1: 1),
    aten.mul.Tensor: (lambda out, x, y: y, lambda out, x, y: x),
    aten.mul.Scalar: (lambda out, x, y: y,),
    aten.reciprocal.default: (lambda out, x: -(out * out),),
    aten.square.default: (lambda out, x: x * 2,),
    aten.exp.default: (lambda out, x: out,),
    aten.exp2.default: (lambda out, x: out * math.log(2),),
    aten.expm1.default: (lambda out, x: out + 1,),
    aten.rsqrt.default: (lambda out, x: out.pow(3) * -0.5,),
    aten.sin.default: (lambda out, x: x.cos(),),
    aten.cos.default: (lambda out, x: -x.sin(),),
    aten.tan.default: (lambda out, x: out * out + 1,),
    aten.sinh.default: (lambda out, x: x.cosh(),),
    aten.cosh.default: (lambda out, x: x.sinh(),),
    aten.asin.default: (lambda out, x: (1 - x * x).rsqrt(),),
    aten.acos.default: (lambda out, x: -(1 - x * x).rsqrt(),),
    aten.asinh.default: (lambda out, x: (x * x + 1).rsqrt(),),
    aten.erf.default: (lambda out, x: (-(x * x)).exp() * (2 / math.sqrt(math.pi)),),
    aten.erfc.default: (lambda out, x: (-(x * x)).exp() * (-2 / math.sqrt(math.pi)),),
    aten.erfinv.default: (lambda out, x: (out * out).exp() * (math.sqrt(math.pi) / 2),),
    aten.lgamma.default: (lambda out, x: x.digamma(),),
    aten.digamma.default: (lambda out, x: torch.polygamma(1, x),),
    aten.polygamma.default: (None, lambda out, n, x: torch.polygamma(n + 1, x)),
    aten.lerp.Scalar: (lambda out, x, end, w: 1 - w, lambda out, x, end, w: w),
    aten.lerp.Tensor: (
        lambda out, x, end, w: 1 - w,
        lambda out, x, end, w: w,
        lambda out, x, end, w: end - x,
    ),
    aten.addcmul.default: (
        lambda out, x, y, z, value=1: 1,
        lambda out, x, y, z, value=1: z * value,
        lambda out, x, y, z, value=1: y * value,
    ),
    aten.fmod.Scalar: (lambda out, x, y: 1,),
    aten.fmod.Tensor: (
        lambda out, x, y: 1,
        lambda out, x, y: -torch.div(x, y, rounding_mode="trunc"),
    ),
    aten.remainder.Scalar: (lambda out, x, y: 1,),
    aten.remainder.Tensor: (
        lambda out, x, y: 1,
        lambda out, x, y: -torch.div(x, y, rounding_mode="floor"),
    ),
}

# The reciprocals of partial derivatives, by which the cotangent is divided.
RECIPROCALS: dict[object, tuple[Partial | None, ...]] = {
    aten.sqrt.default: (lambda out, x: out * 2,),
    aten.log.default: (lambda out, x: x,),
    aten.log2.default: (lambda out, x: x * math.log(2),),
    aten.log10.default: (lambda out, x: x * math.log(10),),
    aten.log1p.default: (lambda out, x: x + 1,),
    aten.atan.default: (lambda out, x: x * x + 1,),
    aten.atanh.default: (lambda out, x: 1 - x * x,),
    aten.div.Scalar: (lambda out, x, y: y,),
}


def conjugate(value: object) -> TorchValue:
    """The conjugate of a tensor or number; a real one is returned as it is."""
    if isinstance(value, torch.Tensor):
        return value.conj() if value.is_complex() else value
    return value.conjugate() if isinstance(value, complex) else value


def _times(cotangent: Tensor, partial: Tensor | float | complex) -> Tensor:
    if isinstance(partial, (int, float)) and partial == 1:
        return cotangent
    if isinstance(partial, (int, float)) and partial == -1:
        return -cotangent
    product: Tensor = cotangent * conjugate(partial)
    return product


def _over(cotangent: Tensor, divisor: Tensor | float | complex) -> Tensor:
    quotient: Tensor = cotangent / conjugate(divisor)
    return quotient


def rule_of(row: tuple[Partial | None, ...], apply: Callable[..., torch.Tensor]) -> Rule:
    """The rule that a row of a table stands for."""

    def rule(cotangent: Tensor, out: Tensor, *args: object, **kwargs: object) -> Cotangents:
        def part(partial: Partial) -> Callable[[], torch.Tensor]:
            return lambda: apply(cotangent, partial(out, *args, **kwargs))

        return tuple(None if partial is None else part(partial) for partial in row)

    return rule


VJPS.update({op: rule_of(row, _times) for op, row in PARTIALS.items()})
VJPS.update({op: rule_of(row, _over) for op, row in RECIPROCALS.items()})


@vjp(aten.div.Tensor)
def div(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """dx = g / y, dy = -g out / y."""
    return (
        lambda: cotangent / conjugate(y),
        lambda: -cotangent * conjugate(out / y),
    )


@vjp(aten.div.Tensor_mode)
def div_mode(
    cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor, *, rounding_mode: str | None = None
) -> Cotangents:
    """A rounded quotient is piecewise constant."""
    if rounding_mode is not None:
        return (lambda: cotangent.new_zeros(x.shape), lambda: cotangent.new_zeros(y.shape))
    return div(cotangent, out, x, y)


@vjp(aten.tanh.default)
def tanh(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """g (1 - out^2)"""
    return (aten.tanh_backward.default(cotangent, out),)


@vjp(aten.sigmoid.default)
def sigmoid(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """g out (1 - out)"""
    return (aten.sigmoid_backward.default(cotangent, out),)


@vjp(aten.tanh_backward.default)
def tanh_backward(cotangent: Tensor, out: Tensor, g: Tensor, y: Tensor) -> Cotangents:
    """Of g conj(1 - y^2)."""
    return (
        lambda: aten.tanh_backward.default(cotangent, conjugate(y)),
        lambda: conjugate(cotangent) * (g * conjugate(y) * -2),
    )


@vjp(aten.sigmoid_backward.default)
def sigmoid_backward(cotangent: Tensor, out: Tensor, g: Tensor, y: Tensor) -> Cotangents:
    """Of g conj(y (1 - y))."""
    return (
        lambda: aten.sigmoid_backward.default(cotangent, conjugate(y)),
        lambda: conjugate(cotangent) * g * (1 - 2 * conjugate(y)),
    )


@vjp(aten.relu.default)
def relu(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """g where the result is positive."""
    return (aten.threshold_backward.default(cotangent, out, 0),)


@vjp(aten.threshold_backward.default)
def threshold_backward(
    cotangent: Tensor, out: Tensor, g: Tensor, x: Tensor, threshold: float
) -> Cotangents:
    """The same selection of the cotangent; x only selects."""
    return (
        lambda: aten.threshold_backward.default(cotangent, x, threshold),
        lambda: cotangent.new_zeros(x.shape),
    )


@vjp(aten.silu.default)
def silu(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """g s (1 + x (1 - s)) with s = sigmoid(x)."""
    return (aten.silu_backward.default(cotangent, x),)


@composition(aten.silu_backward.default)
def silu_backward(cotangent: Tensor, x: Tensor) -> Tensor:
    """g s (1 + x (1 - s)) with s = sigmoid(x)."""
    sigmoid = x.sigmoid()
    return cotangent * sigmoid * (1 + x * (1 - sigmoid))


@vjp(aten.mish.default)
def mish(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """Of x tanh(softplus(x))."""
    return (aten.mish_backward.default(cotangent, x),)


@composition(aten.mish_backward.default)
def mish_backward(cotangent: Tensor, x: Tensor) -> Tensor:
    """g (t + x s (1 - t^2)) with s = sigmoid(x), t = tanh(softplus(x))."""
    slope = torch.nn.functional.softplus(x).tanh()
    return cotangent * (slope + x * x.sigmoid() * (1 - slope * slope))


@vjp(aten.abs.default)
def absolute(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """g x / |x|; zero at zero."""
    return (cotangent * x.sgn(),)


@vjp(aten.pow.Tensor_Scalar)
def pow_scalar(cotangent: Tensor, out: Tensor, x: Tensor, exponent: OpArgument) -> Cotangents:
    """g e x^(e - 1)"""
    if not isinstance(exponent, (torch.SymInt, torch.SymFloat)) and exponent == 0:
        return (lambda: cotangent.new_zeros(x.shape),)
    return (lambda: cotangent * conjugate(x.pow(exponent - 1) * exponent),)


@vjp(aten.pow.Tensor_Tensor)
def pow_tensor(cotangent: Tensor, out: Tensor, x: Tensor, exponent: Tensor) -> Cotangents:
    """g e x^(e - 1) and g out log(x); zero for e = 0, and for 0^e with e >= 0.

    The mask is applied to the factor, by which forward mode multiplies tangents.
    """
    return (
        lambda: (
            cotangent * conjugate(torch.where(exponent == 0, 0, exponent * x.pow(exponent - 1)))
        ),
        lambda: _exponent_cotangent(cotangent, out, x, exponent),
    )


@vjp(aten.pow.Scalar)
def pow_of_scalar(cotangent: Tensor, out: Tensor, x: float, exponent: Tensor) -> Cotangents:
    """g out log(x)"""
    # What is known only when the program runs may be zero.
    if isinstance(x, symbols.SYMBOLIC) or x == 0:
        return (None, lambda: _exponent_cotangent(cotangent, out, out.new_full((), x), exponent))
    logarithm = complex(torch.tensor(x).log()) if isinstance(x, complex) else None
    if logarithm is None:
        logarithm = math.log(x) if x > 0 else math.nan
    return (None, lambda: cotangent * conjugate(out * logarithm))


def _exponent_cotangent(
    cotangent: torch.Tensor, out: torch.Tensor, x: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    real = exponent.real if exponent.is_complex() else exponent
    vanishes = (x == 0) & (real >= 0)
    factor: torch.Tensor = conjugate(torch.where(vanishes, 0, out * x.log()))
    return cotangent * factor


@vjp(aten.atan2.default)
def atan2(cotangent: Tensor, out: Tensor, y: Tensor, x: Tensor) -> Cotangents:
    """(g x, -g y) / (x^2 + y^2); zero at the origin."""
    squared = y * y + x * x
    scaled = cotangent * squared.reciprocal().masked_fill(squared == 0, 0)
    return (lambda: scaled * x, lambda: scaled * -y)


@vjp(aten.polar.default)
def polar(cotangent: Tensor, out: Tensor, length: Tensor, angle: Tensor) -> Cotangents:
    """Of length exp(i angle).

    Torch's formula takes the direction from the result, which has none where the length is zero,
    and the opposite one where it is negative.
    """
    real, imag = cotangent.real, cotangent.imag
    return (
        lambda: real * angle.cos() + imag * angle.sin(),
        lambda: length * (imag * angle.cos() - real * angle.sin()),
    )


@vjp(aten.hypot.default)
def hypot(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """g (x, y) / out"""
    return (lambda: cotangent * (x / out), lambda: cotangent * (y / out))


@vjp(aten.addcdiv.default)
def addcdiv(
    cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor, z: Tensor, *, value: float = 1
) -> Cotangents:
    """Of x + value y / z."""
    return (
        cotangent,
        lambda: cotangent * conjugate(value / z),
        lambda: -cotangent * conjugate(value * (y / z) / z),
    )


@vjp(aten.maximum.default)
def maximum(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """To the larger argument; where they are equal, half to each."""
    shared = _shared(cotangent, x, y)
    return (lambda: shared.masked_fill(x < y, 0), lambda: shared.masked_fill(x > y, 0))


@vjp(aten.minimum.default)
def minimum(cotangent: Tensor, out: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """To the smaller argument; where they are equal, half to each."""
    shared = _shared(cotangent, x, y)
    return (lambda: shared.masked_fill(x > y, 0), lambda: shared.masked_fill(x < y, 0))


def _shared(cotangent: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The cotangent; half of it where x and y are equal."""
    return torch.where(x == y, cotangent / 2, cotangent)


@vjp(aten.clamp.default)
def clamp(
    cotangent: Tensor, out: Tensor, x: Tensor, min: float | None = None, max: float | None = None
) -> Cotangents:
    """g where x is within the bounds, or equal to one of them."""
    return (_within(cotangent, x, min, max),)


@vjp(aten.clamp_min.default)
def clamp_min(cotangent: Tensor, out: Tensor, x: Tensor, low: float) -> Cotangents:
    """g where x is at least the bound."""
    return (_within(cotangent, x, low, None),)


@vjp(aten.clamp_max.default)
def clamp_max(cotangent: Tensor, out: Tensor, x: Tensor, high: float) -> Cotangents:
    """g where x is at most the bound."""
    return (_within(cotangent, x, None, high),)


# A limit of `clamp`; None: there is none.
Bound: TypeAlias = torch.Tensor | float | None


def _within(cotangent: torch.Tensor, x: torch.Tensor, low: Bound, high: Bound) -> torch.Tensor:
    if low is not None and high is not None:
        return torch.where((x >= low) & (x <= high), cotangent, 0)
    if low is not None:
        return torch.where(x >= low, cotangent, 0)
    return cotangent if high is None else torch.where(x <= high, cotangent, 0)


@vjp(aten.where.self)
def where(cotangent: Tensor, out: Tensor, condition: Tensor, x: Tensor, y: Tensor) -> Cotangents:
    """To the argument that was selected."""
    return (
        None,
        lambda: torch.where(condition, cotangent, 0),
        lambda: torch.where(condition, 0, cotangent),
    )


@vjp(aten.masked_fill.Scalar)
def masked_fill(
    cotangent: Tensor, out: Tensor, x: Tensor, mask: Tensor, value: float
) -> Cotangents:
    """Zero where it was filled."""
    return (cotangent.masked_fill(mask, 0),)


@vjp(aten.masked_fill.Tensor)
def masked_fill_tensor(
    cotangent: Tensor, out: Tensor, x: Tensor, mask: Tensor, value: Tensor
) -> Cotangents:
    """Zero where it was filled; the value receives the sum over those elements."""
    return (
        lambda: cotangent.masked_fill(mask, 0),
        None,
        lambda: torch.where(mask, cotangent, 0).sum(),
    )


@vjp(aten.native_dropout.default)
def native_dropout(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    p: float,
    train: bool | None = None,
) -> Cotangents:
    """g / (1 - p) where it was kept."""
    if train is False:
        return (cotangent[0],)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return (cotangent[0] * out[1] * scale,)


@vjp(aten._to_copy.default)
def to_copy(cotangent: Tensor, out: Tensor, x: Tensor, **_: object) -> Cotangents:
    """The cotangent on x's device; the sweep converts its dtype."""
    return (cotangent.to(x.device),)
