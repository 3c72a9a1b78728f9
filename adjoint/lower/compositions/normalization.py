"""Layer, group and RMS normalization, and their backward operators.

Variances are computed in two passes, mean first, for accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import NoComposition, composition, require_real, widened
from adjoint.rules.normalization import input_cotangent

aten = torch.ops.aten


def _normalized(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) rstd, mean and rstd."""
    mean = x.mean(axes, keepdim=True)
    centered = x - mean
    rstd = ((centered * centered).mean(axes, keepdim=True) + eps).rsqrt()
    return centered * rstd, mean, rstd


@composition(aten.native_layer_norm.default)
def _layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    require_real(x)
    if x.numel() == 0:
        raise NoComposition
    x = x.contiguous()  # As in eager, the result is contiguous.
    axes = list(range(x.dim() - len(normalized_shape), x.dim()))
    y, mean, rstd = _normalized(widened(x), axes, eps)
    y = y if weight is None else y * widened(weight)
    y = y if bias is None else y + widened(bias)
    return y.to(x.dtype), mean, rstd


@composition(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    cotangent: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    require_real(x)
    if x.numel() == 0:
        raise NoComposition
    cotangent, x = cotangent.contiguous(), x.contiguous()
    first = x.dim() - len(normalized_shape)
    axes, rest = list(range(first, x.dim())), list(range(first))
    g, wide = widened(cotangent), widened(x)
    normal = (wide - mean) * rstd
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * widened(weight)
        of_x = input_cotangent(weighted, normal, rstd, axes).to(x.dtype)
    if output_mask[1] and weight is not None:
        of_weight = ((g * normal).sum(rest) if rest else g * normal).to(weight.dtype)
    if output_mask[2]:
        of_bias = (g.sum(rest) if rest else g.clone()).to(cotangent.dtype)
    return of_x, of_weight, of_bias


@composition(aten._fused_rms_norm.default)
def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    require_real(x)
    axes = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = widened(x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = ((wide * wide).mean(axes, keepdim=True) + eps).rsqrt()
    y = wide * rstd
    return (y if weight is None else y * widened(weight)).to(x.dtype), rstd


def _channels(weight: Tensor, group: int) -> Tensor:
    return widened(weight).reshape(group, weight.shape[0] // group, 1)


@composition(aten.native_group_norm.default)
def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    require_real(x)
    if not x.is_contiguous() or x.numel() == 0:
        raise NoComposition
    wide = widened(x).reshape(N, group, C // group, HxW)
    y, mean, rstd = _normalized(wide, [2, 3], eps)
    y = y if weight is None else y * _channels(weight, group)
    y = y if bias is None else y + _channels(bias, group)
    return y.reshape(x.shape).to(x.dtype), mean.reshape(N, group), rstd.reshape(N, group)


@composition(aten.native_group_norm_backward.default)
def _group_norm_backward(
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
    require_real(x)
    if not (x.is_contiguous() and cotangent.is_contiguous()) or x.numel() == 0:
        raise NoComposition
    shape = (N, group, C // group, HxW)
    g, wide = widened(cotangent).reshape(shape), widened(x).reshape(shape)
    mean, rstd = (widened(each).reshape(N, group, 1, 1) for each in (mean, rstd))
    normal = (wide - mean) * rstd
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * _channels(weight, group)
        of_x = input_cotangent(weighted, normal, rstd, [2, 3]).reshape(x.shape).to(x.dtype)
    # Summed over positions first and then over samples, so that both sums are contiguous.
    if output_mask[1] and weight is not None:
        of_weight = (g * normal).sum(3).sum(0).reshape(weight.shape).to(weight.dtype)
    if output_mask[2]:
        of_bias = g.sum(3).sum(0).reshape([C]).to(x.dtype)
    return of_x, of_weight, of_bias
