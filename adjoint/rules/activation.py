"""Activations whose backward kernels torch cannot differentiate, and `rrelu`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangents, composition, vjp

aten = torch.ops.aten


@composition(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(cotangent: Tensor, x: Tensor) -> Tensor:
    """A slope of 1/6 strictly between -3 and 3."""
    return torch.where((x > -3) & (x < 3), cotangent / 6, 0)


@composition(aten.logit_backward.default)
def logit_backward(cotangent: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    """1 / (x (1 - x)); zero where x was clamped to [eps, 1 - eps], undefined outside of [0, 1]."""
    low = 0.0 if eps is None else eps
    outside = (x < low) | (x > 1 - low)
    # Select before dividing: the derivative of a division by zero would be NaN.
    inside = torch.where(outside, 0.5, x)
    slope = 1 / (inside * (1 - inside))
    return torch.where(outside, torch.nan if eps is None else 0.0, cotangent * slope)


@composition(aten._masked_softmax_backward.default)
def masked_softmax_backward(
    cotangent: Tensor, out: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    """The backward of softmax over the positions that are not masked."""
    axis = out.dim() - 1 if dim is None else dim
    hidden = mask.to(torch.bool)
    if hidden.dim() == 2 and out.dim() == 4:
        # (length, length) or (batch, length): the kernel tells the two apart by their sizes.
        rows = hidden.shape == out.shape[2:]
        hidden = hidden.expand(out.shape) if rows else hidden[:, None, None, :].expand(out.shape)
    product = (cotangent * out).masked_fill(hidden, 0)
    return product - out.masked_fill(hidden, 0) * product.sum(axis, keepdim=True)


@vjp(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Cotangents:
    """The slopes drawn in the forward pass; outside of training, their mean."""
    if training:
        return (cotangent[0] * out[1],)
    # Not a mask: eager's derivative depends on `x`, if only by zeros.
    return (aten.leaky_relu_backward(cotangent[0], x, (lower + upper) / 2, False),)
