"""Batch normalization and its backward operators.

Statistics are over all axes but the second.  Variances are computed in two passes, mean first, for
accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import NoComposition, composition, require_real, widened

aten = torch.ops.aten


class _Batch:
    """A batch as samples, channels and positions, and its sums over all but channels."""

    def __init__(self, x: Tensor) -> None:
        require_real(x)
        sizes: list[object] = list(x.shape)
        if x.dim() < 2 or any(isinstance(size, int) and size == 0 for size in sizes):
            raise NoComposition
        self.shape = [1, x.shape[1], *[1] * (x.dim() - 2)]
        self.count = x.numel() // x.shape[1]
        self._axes = [axis for axis in range(x.dim()) if axis != 1]

    def sum(self, value: Tensor) -> Tensor:
        return torch.sum(value, self._axes)

    def mean(self, value: Tensor) -> Tensor:
        mean: Tensor = self.sum(value) / self.count
        return mean

    def along(self, of_channels: Tensor) -> Tensor:
        """Values of channels, to be broadcast over samples and positions."""
        return widened(of_channels).reshape(self.shape)


def _trained(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """The result, mean, reciprocal deviation, variance, and how many values a channel has."""
    batch, wide = _Batch(x), widened(x)
    mean = batch.mean(wide)
    centered = wide - batch.along(mean)
    variance = batch.mean(centered * centered)
    rstd = (variance + eps).rsqrt()
    y = _scaled(batch, centered, rstd, weight, bias)
    return y.to(x.dtype), mean, rstd, variance, batch.count


def _scaled(
    batch: _Batch, centered: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    factor = rstd if weight is None else rstd * widened(weight)
    y = centered * batch.along(factor)
    return y if bias is None else y + batch.along(bias)


def _updated(
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    variance: Tensor,
    count: int,
    momentum: float,
) -> tuple[Tensor, Tensor]:
    """The running statistics after the batch; the variance is the unbiased one."""
    unbiased = variance * count / (count - 1)
    return (
        (widened(running_mean) * (1 - momentum) + mean * momentum).to(running_mean.dtype),
        (widened(running_var) * (1 - momentum) + unbiased * momentum).to(running_var.dtype),
    )


def _of_given_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> tuple[Tensor, ...]:
    batch = _Batch(x)
    rstd = (widened(running_var) + eps).rsqrt()
    y = _scaled(batch, widened(x) - batch.along(running_mean), rstd, weight, bias)
    nothing = running_mean.new_empty(0)
    return y.to(x.dtype), nothing, nothing.clone()


@composition(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if not training:
        raise NoComposition
    y, mean, rstd, variance, count = _trained(x, weight, bias, eps)
    return y, mean, rstd, *_updated(running_mean, running_var, mean, variance, count, momentum)


@composition(aten.native_batch_norm.default)
def _batch_norm_without_updates(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if training and running_mean is None:
        return _trained(x, weight, bias, eps)[:3]
    if training or running_mean is None or running_var is None:
        raise NoComposition
    return _of_given_statistics(x, weight, bias, running_mean, running_var, eps)


@composition(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    return _trained(x, weight, bias, eps)[:3]


@composition(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_outside_of_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    return _of_given_statistics(x, weight, bias, running_mean, running_var, eps)


@composition(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
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
) -> tuple[Tensor | None, ...]:
    batch, g, wide = _Batch(x), widened(cotangent), widened(x)
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean = running_mean
        rstd = None if running_var is None else (widened(running_var) + eps).rsqrt()
    if mean is None or rstd is None:
        raise NoComposition
    normal = (wide - batch.along(mean)) * batch.along(rstd)
    of_weight, of_bias = batch.sum(g * normal), batch.sum(g)
    of_x = None
    if output_mask[0]:
        factor = batch.along(rstd if weight is None else widened(rstd) * widened(weight))
        if train:
            g = g - batch.along(of_bias / batch.count)
            g = g - normal * batch.along(of_weight / batch.count)
        of_x = (g * factor).to(x.dtype)
    like = x if weight is None else weight
    return (
        of_x,
        of_weight.to(like.dtype) if output_mask[1] else None,
        of_bias.to(like.dtype) if output_mask[2] else None,
    )
