"""Layer, group and RMS normalization, and their backward operators.

Variances are computed in two passes, mean first, for accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import (
    composition,
    require_elements,
    require_real,
    widened,
)
from adjoint.rules.normalization import affine_cotangents, normalized_axes

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
    require_elements(x)
    x = x.contiguous()  # As in eager, the result is contiguous.
    axes, _ = normalized_axes(x, normalized_shape)
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
    require_elements(x)
    cotangent, x = cotangent.contiguous(), x.contiguous()
    axes, rest = normalized_axes(x, normalized_shape)
    g, wide = widened(cotangent), widened(x)
    normal = (wide - mean) * rstd
    factor = None if weight is None else widened(weight)

    def sum_over_rows(value: Tensor) -> Tensor:
        return value.sum(rest) if rest else value.clone()

    of_x, of_weight, of_bias = affine_cotangents(
        g, normal, rstd, factor, axes, sum_over_rows, output_mask
    )
    return _like(of_x, x), _like(of_weight, weight), _like(of_bias, cotangent)


def _like(cotangent: Tensor | None, value: Tensor | None) -> Tensor | None:
    """A cotangent in the dtype of `value`."""
    return None if cotangent is None or value is None else cotangent.to(value.dtype)


@composition(aten._fused_rms_norm.default)
def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    require_real(x)
    axes, _ = normalized_axes(x, normalized_shape)
    wide = widened(x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = ((wide * wide).mean(axes, keepdim=True) + eps).rsqrt()
    y = wide * rstd
    return (y if weight is None else y * widened(weight)).to(x.dtype), rstd


class _Groups:
    """Images as samples, groups, channels of a group and positions; a view, whichever of channels
    and positions are adjacent in memory."""

    def __init__(self, x: Tensor, group: int) -> None:
        require_real(x)
        require_elements(x)
        self.shape = (x.shape[0], group, x.shape[1] // group, *x.shape[2:])
        self.axes = list(range(2, len(self.shape)))
        self.positions = self.axes[1:]
        self.of_samples = (x.shape[0], group, *[1] * len(self.axes))
        self.of_channels = (*self.shape[1:3], *[1] * len(self.positions))

    def channels(self, weight: Tensor) -> Tensor:
        return widened(weight).reshape(self.of_channels)

    def sum_over_samples(self, value: Tensor) -> Tensor:
        """Summed over positions first, so that both sums are of adjacent elements."""
        return (value.sum(self.positions) if self.positions else value).sum(0).reshape([-1])


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
    groups = _Groups(x, group)
    y, mean, rstd = _normalized(widened(x).reshape(groups.shape), groups.axes, eps)
    y = y if weight is None else y * groups.channels(weight)
    y = y if bias is None else y + groups.channels(bias)
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
    groups = _Groups(x, group)
    g, wide = widened(cotangent).reshape(groups.shape), widened(x).reshape(groups.shape)
    mean, rstd = (widened(each).reshape(groups.of_samples) for each in (mean, rstd))
    normal = (wide - mean) * rstd
    factor = None if weight is None else groups.channels(weight)
    of_x, of_weight, of_bias = affine_cotangents(
        g, normal, rstd, factor, groups.axes, groups.sum_over_samples, output_mask
    )
    of_x = None if of_x is None else of_x.reshape(x.shape)
    return _like(of_x, x), _like(of_weight, weight), _like(of_bias, x)
