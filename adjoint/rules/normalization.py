"""Normalizations: backward kernels as compositions, and the rule of batch norm.

With y = (x - mean) rstd and a cotangent g of y,

    dx = rstd (g - mean(g) - y mean(g y)).

The kernels take mean and rstd as constants.  To be differentiated again they must be functions of
x: rstd = (var(x) + eps)^(-1/2), where eps is implied by the given rstd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangents, composition, vjp

aten = torch.ops.aten


def _reciprocal_deviation(variance: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    """(variance + eps)^(-1/2), which has the value `rstd`.

    `variance - variance.detach()` is zero, but has the derivative of the variance.
    """
    change, value = variance - variance.detach(), rstd.detach()
    return value * (1 + change * value.square()).rsqrt()


def input_cotangent(
    g: torch.Tensor, y: torch.Tensor, rstd: torch.Tensor, axes: list[int]
) -> torch.Tensor:
    """rstd (g - mean(g) - y mean(g y)): the cotangent of x, given that of y."""
    along = (g * y).mean(axes, keepdim=True)
    return (g - g.mean(axes, keepdim=True) - y * along) * rstd


def affine_cotangents(
    g: Tensor,
    y: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    axes: list[int],
    summed: Callable[[Tensor], Tensor],
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The cotangents of x, weight and bias, given that of weight y + bias.

    `axes`: those that x is normalized over.  `summed`: a sum over the elements that share a weight.
    """
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        of_x = input_cotangent(g if weight is None else g * weight, y, rstd, axes)
    if output_mask[1] and weight is not None:
        of_weight = summed(g * y)
    if output_mask[2]:
        of_bias = summed(g)
    return of_x, of_weight, of_bias


def normalized_axes(x: Tensor, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """The last axes, which have the `shape` that is normalized, and the other axes."""
    first = x.dim() - len(shape)
    return list(range(first, x.dim())), list(range(first))


@composition(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    cotangent: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Over the last axes."""
    axes, rest = normalized_axes(x, normalized_shape)
    centered = x - x.mean(axes, keepdim=True)
    deviation = _reciprocal_deviation(centered.square().mean(axes, keepdim=True), rstd)
    y = centered * deviation
    return affine_cotangents(
        cotangent, y, deviation, weight, axes, lambda each: _sum(each, rest), output_mask
    )


@composition(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    cotangent: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Over the last axes, without a mean."""
    axes, rest = normalized_axes(x, normalized_shape)
    deviation = _reciprocal_deviation(x.square().mean(axes, keepdim=True), rstd)
    y = x * deviation
    of_x = of_weight = None
    if output_mask[0]:
        g = cotangent if weight is None else cotangent * weight
        of_x = deviation * (g - y * (g * y).mean(axes, keepdim=True))
    if output_mask[1] and weight is not None:
        of_weight = _sum(cotangent * y, rest)
    return of_x, of_weight


@composition(aten.native_group_norm_backward.default)
def group_norm_backward(
    cotangent: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Over groups of channels."""
    grouped = x.reshape(N, group, C // group, HxW)
    g = cotangent.reshape(N, group, C // group, HxW)
    axes = [2, 3]
    centered = grouped - grouped.mean(axes, keepdim=True)
    deviation = _reciprocal_deviation(
        centered.square().mean(axes, keepdim=True), rstd.reshape(N, group, 1, 1)
    )
    y = centered * deviation
    weight = None if weight is None else weight.reshape(group, C // group, 1)
    of_x, *others = affine_cotangents(
        g, y, deviation, weight, axes, lambda each: each.sum([0, 3]).reshape(C), output_mask
    )
    return None if of_x is None else of_x.reshape(x.shape), *others


@vjp(aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default)
def batch_norm(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """By the kernel, which reads the running statistics or those of the batch: these are saved."""
    if cotangent[0] is None:
        return None, None, None
    running = (None, None) if training else (running_mean, running_var)
    of_batch = (out[1], out[2]) if training else (None, None)
    mask = [True, weight is not None, bias is not None]
    return aten.native_batch_norm_backward.default(
        cotangent[0], x, weight, *running, *of_batch, training, eps, mask
    )


@composition(aten.native_batch_norm_backward.default, aten.batch_norm_backward.default)
def batch_norm_backward(
    cotangent: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *reserve: object,
) -> tuple[Tensor | None, ...]:
    """Over all axes but the second; outside of training, the statistics are constants."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1] * x.dim()
    shape[1] = x.shape[1]
    of_x = of_weight = of_bias = None
    g = cotangent if weight is None else cotangent * weight.reshape(shape)
    if train:
        centered = x - x.mean(axes, keepdim=True)
        deviation = (centered.square().mean(axes, keepdim=True) + eps).rsqrt()
    else:
        assert running_mean is not None, "statistics are given outside of training"
        assert running_var is not None
        centered = x - running_mean.reshape(shape)
        deviation = (running_var.reshape(shape) + eps).rsqrt()
    if output_mask[0]:
        of_x = g * deviation
        if train:
            of_x = input_cotangent(g, centered * deviation, deviation, axes)
    if output_mask[1]:
        of_weight = (cotangent * centered * deviation).sum(axes)
    if output_mask[2]:
        of_bias = cotangent.sum(axes)
    return of_x, of_weight, of_bias


@composition(aten.cudnn_batch_norm_backward.default, aten.miopen_batch_norm_backward.default)
def cudnn_batch_norm_backward(
    x: Tensor,
    cotangent: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
    *reserve: object,
) -> tuple[Tensor | None, ...]:
    """These kernels are used in training only."""
    mask = (True, True, True)
    return batch_norm_backward(
        cotangent, x, weight, None, None, save_mean, save_var, True, epsilon, mask
    )


@vjp(aten._weight_norm_interface.default)
def weight_norm(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    direction: Tensor,
    length: Tensor,
    dim: int = 0,
) -> Cotangents:
    """By the kernel, plus the cotangent of the norms, which are a result too."""
    of_out, of_norms = cotangent
    of_direction = of_length = None
    if of_out is not None:
        kernel = aten._weight_norm_interface_backward.default
        of_direction, of_length = kernel(of_out, direction, length, out[1], dim)
    if of_norms is not None:
        of_direction = _added(of_direction, of_norms * (direction / out[1]))
    return of_direction, of_length


@vjp(aten.native_group_norm.default)
def group_norm(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Cotangents:
    """By the kernel, plus the cotangents of mean and rstd, which are results too."""
    of_out, of_mean, of_rstd = cotangent
    of_x = of_weight = of_bias = None
    if of_out is not None:
        needed = (True, weight is not None, bias is not None)
        kernel = aten.native_group_norm_backward.default
        of_x, of_weight, of_bias = kernel(
            of_out, x, out[1], out[2], weight, N, C, HxW, group, needed
        )
    count = C // group * HxW
    grouped = x.reshape(N, group, count)
    if of_mean is not None:
        part = (of_mean.unsqueeze(-1) / count).expand(grouped.shape)
        of_x = _added(of_x, part.reshape(x.shape))
    if of_rstd is not None:
        slope = (of_rstd * out[2].pow(3)).unsqueeze(-1) / -count
        of_x = _added(of_x, (slope * (grouped - out[1].unsqueeze(-1))).reshape(x.shape))
    return of_x, of_weight, of_bias


@vjp(aten._fused_rms_norm.default)
def rms_norm(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> Cotangents:
    """By the kernel, plus the cotangent of rstd, which is a result too."""
    of_out, of_rstd = cotangent
    of_x = of_weight = None
    if of_out is not None:
        needed = (True, weight is not None)
        kernel = aten._fused_rms_norm_backward.default
        of_x, of_weight = kernel(of_out, x, normalized_shape, out[1], weight, needed)
    if of_rstd is not None:
        of_x = _added(of_x, of_rstd * out[1].pow(3) * x / -math.prod(normalized_shape))
    return of_x, None, of_weight


@composition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    cotangent: Tensor, direction: Tensor, length: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor | None, ...]:
    """Of length * direction / |direction|, with norms over all axes but `dim`."""
    axes = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    norm = direction.square().sum(axes, keepdim=True).sqrt()
    unit = direction / norm
    along = (cotangent * unit).sum(axes, keepdim=True)
    return (cotangent - unit * along) * (length / norm), along


def _sum(each: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return each.sum(axes) if axes else each


def _added(cotangent: Tensor | None, part: Tensor) -> Tensor:
    """The sum of two cotangents, of which the first may be zero."""
    return part if cotangent is None else cotangent + part
