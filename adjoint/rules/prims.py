"""Torch's primitive ops, which autograd does not differentiate, in terms of ATen ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, composition

aten = torch.ops.aten
prims = torch.ops.prims

# Primitives that are `torch` functions of the same name.
_SAME_NAME = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "conj_physical",
    "real",
    "imag",
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "atan2",
    "fmax",
    "fmin",
    "fmod",
    "hypot",
    "maximum",
    "minimum",
    "remainder",
    "where",
    "cat",
    "clone",
    "as_strided_scatter",
]

_OTHER_NAME: dict[str, Callable[..., torch.Tensor]] = {
    "erf_inv": torch.erfinv,
    "bessel_i0": torch.special.i0,
    "bessel_i0e": torch.special.i0e,
    "bessel_i1": torch.special.i1,
    "bessel_i1e": torch.special.i1e,
    "erfcx": torch.special.erfcx,
    "ndtri": torch.special.ndtri,
    "rev": torch.flip,
    "transpose": torch.permute,
    "squeeze": torch.squeeze,
    "reshape": torch.reshape,
    "conj": torch.conj,
    "view_of": aten.alias.default,
    "device_put": lambda x, device, non_blocking=False: x.to(device, non_blocking=non_blocking),
    "convert_element_type": lambda x, dtype: x.to(dtype),
    "collapse": lambda x, start, end: x.flatten(start, end),
    "collapse_view": lambda x, start, end: x.flatten(start, end),
    "copy_strided": lambda x, stride: x,
    "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3),
}

_PIECEWISE_CONSTANT = ["ceil", "floor", "round", "sign", "trunc", "nextafter", "fill"]

COMPOSITIONS.update({getattr(prims, name).default: getattr(torch, name) for name in _SAME_NAME})
COMPOSITIONS.update({getattr(prims, name).default: same for name, same in _OTHER_NAME.items()})
NON_DIFFERENTIABLE.update(getattr(prims, name).default for name in _PIECEWISE_CONSTANT)


@composition(prims.broadcast_in_dim.default)
def broadcast_in_dim(
    x: Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> Tensor:
    """Axis i of x is axis broadcast_dimensions[i] of the result."""
    unit = [1] * len(shape)
    for axis, target in enumerate(broadcast_dimensions):
        unit[target] = x.shape[axis]
    return x.reshape(unit).expand(shape)


@composition(prims.split_dim.default)
def split_dim(x: Tensor, dim: int, outer_length: int) -> object:
    """One axis becomes two."""
    return x.unflatten(dim, (outer_length, x.shape[dim] // outer_length))


def _reduced(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    dims: Sequence[int] | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    axes = list(range(x.dim())) if dims is None else list(dims)
    value = function(x, axes) if axes else x
    return value if output_dtype is None else value.to(output_dtype)


def _product(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis)
    return x


COMPOSITIONS[prims.sum.default] = functools.partial(_reduced, torch.sum)
COMPOSITIONS[prims.prod.default] = functools.partial(_reduced, _product)
COMPOSITIONS[prims.amax.default] = functools.partial(_reduced, torch.amax)
COMPOSITIONS[prims.amin.default] = functools.partial(_reduced, torch.amin)


@composition(prims.var.default)
def var(
    x: Tensor,
    dims: Sequence[int] | None,
    correction: float | None = 1,
    *,
    output_dtype: int | None = None,
) -> Tensor:
    """The variance over the axes `dims`."""
    value = torch.var(x, None if dims is None else list(dims), correction=correction)
    return value if output_dtype is None else value.to(output_dtype)


@composition(prims.fft_r2c.default)
def fft_r2c(x: Tensor, *, dim: Sequence[int], onesided: bool) -> object:
    """Unnormalized."""
    return aten._fft_r2c.default(x, dim, 0, onesided)


@composition(prims.fft_c2r.default)
def fft_c2r(x: Tensor, *, dim: Sequence[int], last_dim_size: int) -> object:
    """Unnormalized."""
    return aten._fft_c2r.default(x, dim, 0, last_dim_size)


@composition(prims.fft_c2c.default)
def fft_c2c(x: Tensor, *, dim: Sequence[int], forward: bool) -> object:
    """Unnormalized."""
    return aten._fft_c2c.default(x, dim, 0, forward)
