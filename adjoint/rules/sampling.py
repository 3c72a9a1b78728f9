"""Grid sampling: its backward kernels as compositions.

A sample is a weighted sum of the elements around a point; the weights are polynomials in the
point's fractional coordinates.  As in eager, a coordinate clamped to the border has derivative
zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import composition

aten = torch.ops.aten

_NEAREST, _BICUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2

# The parameter of the bicubic convolution kernel, usually called a.
_CUBIC = -0.75


@composition(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    cotangent: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Autograd's derivative of the samples, written in ordinary ops."""
    x, grid = (each if each.requires_grad else each.detach().requires_grad_() for each in (x, grid))
    samples = _samples(x, grid, interpolation, padding, align_corners)
    wanted = [each for each, is_wanted in zip((x, grid), output_mask, strict=True) if is_wanted]
    found = iter(
        torch.autograd.grad(samples, wanted, cotangent, create_graph=True, materialize_grads=True)
    )
    return tuple(next(found) if is_wanted else None for is_wanted in output_mask)


def _samples(x: Tensor, grid: Tensor, interpolation: int, padding: int, aligned: bool) -> Tensor:
    sizes = x.shape[2:]
    # The grid's coordinates are in reverse order: the last axis comes first.
    points = [
        _unnormalized(point, size, aligned)
        for point, size in zip(reversed(grid.unbind(-1)), sizes, strict=True)
    ]
    axes = [
        _neighbours(point, size, interpolation, padding, aligned)
        for point, size in zip(points, sizes, strict=True)
    ]
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for corner in itertools.product(*axes):
        weight = math.prod((weight for _, weight in corner[1:]), start=corner[0][1])
        total = total + _element(x, [index for index, _ in corner]) * weight.unsqueeze(1)
    return total


def _unnormalized(point: Tensor, size: int, aligned: bool) -> Tensor:
    """From [-1, 1] to indices; the ends are the centres of the outer elements, or their edges."""
    return (point + 1) / 2 * (size - 1) if aligned else ((point + 1) * size - 1) / 2


def _neighbours(
    point: Tensor, size: int, interpolation: int, padding: int, aligned: bool
) -> list[tuple[Tensor, Tensor]]:
    """The indices around a point along one axis, and their weights."""
    if interpolation == _BICUBIC:
        first = point.floor()
        return [
            (_padded(first + step, size, padding, aligned).round(), weight)
            for step, weight in zip((-1, 0, 1, 2), _cubic_weights(point - first), strict=True)
        ]
    point = _padded(point, size, padding, aligned)
    if interpolation == _NEAREST:
        return [(point.round(), torch.ones_like(point))]
    first = point.floor()
    beyond = point - first
    return [(first, 1 - beyond), (first + 1, beyond)]


def _cubic_weights(t: Tensor) -> list[Tensor]:
    def near(t: Tensor) -> Tensor:
        return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1

    def far(t: Tensor) -> Tensor:
        return ((t - 5) * t + 8) * t * _CUBIC - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _padded(point: Tensor, size: int, padding: int, aligned: bool) -> Tensor:
    """The coordinate, with the padding mode applied to points outside of the tensor."""
    if padding == _REFLECTION:
        point = _reflected(point, *((0, size - 1) if aligned else (-0.5, size - 0.5)))
    if padding in (_BORDER, _REFLECTION):
        inside = (point > 0) & (point < size - 1)
        return torch.where(inside, point, point.detach().clamp(0, size - 1))
    return point


def _reflected(point: Tensor, low: float, high: float) -> Tensor:
    span = high - low
    if span == 0:
        return torch.zeros_like(point)
    along = point - low
    along = torch.where(along < 0, -along, along)
    turns = (along / span).floor()
    rest = along - turns * span
    return torch.where(turns % 2 == 0, rest, span - rest) + low


def _element(x: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Of each batch and channel, the elements at the indices; zeros outside of the tensor."""
    sizes = x.shape[2:]
    inside = torch.ones_like(indices[0], dtype=torch.bool)
    place = torch.zeros_like(indices[0], dtype=torch.long)
    for index, size in zip(indices, sizes, strict=True):
        is_in = (index >= 0) & (index <= size - 1)
        inside = inside & is_in
        place = place * size + torch.where(is_in, index, 0).long()
    flat = place.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    found = x.flatten(2).gather(2, flat).view(*x.shape[:2], *place.shape[1:])
    return torch.where(inside.unsqueeze(1), found, 0)
