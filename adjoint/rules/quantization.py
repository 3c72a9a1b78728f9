"""Fake quantization with a learned scale and zero point.

With q = clamp(round(x / s + z), low, high), the result is (q - z) s.  For x, rounding has the
straight-through derivative 1; for s and z, the derivative 0.  `grad_factor` multiplies the
cotangents of scale and zero point.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.open_types import OpArgument
from adjoint.rules.registry import composition, vjp

aten = torch.ops.aten


def _pull_back(
    cotangent: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    low: int,
    high: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per element: the cotangent of x, and the contributions to those of scale and zero point."""
    zero = (zero_point + 0.5).clamp(low, high).trunc()
    ratio = x * (1 / scale)
    level = ratio.round() + zero
    inside = (level >= low) & (level <= high)
    of_scale = torch.where(inside, level - zero - ratio, level.clamp(low, high) - zero)
    return (
        torch.where(inside, cotangent, 0),
        cotangent * of_scale,
        torch.where(inside, 0, -cotangent * scale),
    )


@composition(aten._fake_quantize_learnable_per_tensor_affine_backward.default)
def per_tensor_backward(
    cotangent: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor | None, ...]:
    """One scale and zero point."""
    of_x, of_scale, of_zero = _pull_back(cotangent, x, scale, zero_point, quant_min, quant_max)
    return (
        of_x,
        (of_scale.sum() * grad_factor).reshape(scale.shape),
        (of_zero.sum() * grad_factor).reshape(zero_point.shape),
    )


@composition(aten._fake_quantize_learnable_per_channel_affine_backward.default)
def per_channel_backward(
    cotangent: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor | None, ...]:
    """A scale and a zero point for each index along an axis."""
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    of_x, of_scale, of_zero = _pull_back(
        cotangent, x, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max
    )
    rest = [each for each in range(x.dim()) if each != axis % x.dim()]
    sums = (each.sum(rest) if rest else each for each in (of_scale, of_zero))
    return (of_x, *(each * grad_factor for each in sums))


@vjp(aten._fake_quantize_learnable_per_tensor_affine.default)
def per_tensor(
    cotangent: Tensor, out: Tensor, x: Tensor, *quantizer: OpArgument, **named: OpArgument
) -> tuple[Tensor | None, ...]:
    """By the kernel, which supports float32 only."""
    kernel = aten._fake_quantize_learnable_per_tensor_affine_backward.default
    pull_back = kernel if x.dtype == torch.float32 else per_tensor_backward
    return pull_back(cotangent, x, *quantizer, **named)
