"""Stacking, rolling, indexing without checks, copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.graph.operations import with_data
from adjoint.lower.compositions.registry import NoComposition, composition

aten = torch.ops.aten


@composition(aten.stack.default)
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim = dim % (tensors[0].dim() + 1)
    return torch.cat([each.unsqueeze(dim) for each in tensors], dim)


@composition(aten.roll.default)
def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """roll(x, s) = cat(x[-s:], x[:-s]), along each of the axes"""
    if not dims:
        flat: Tensor = _roll(x.reshape(-1), shifts, [0])
        return flat.reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size: object = x.shape[dim]
        if not isinstance(size, int) or not size:
            raise NoComposition
        start = -shift % size
        if start:
            parts = [x.narrow(dim, start, size - start), x.narrow(dim, 0, start)]
            x = torch.cat(parts, dim)
    return x.clone()


@composition(with_data)
def _with_data(history: Tensor, data: Tensor) -> Tensor:
    """Native code knows no histories."""
    return data.clone()


@composition(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What `x.copy_(source)` writes."""
    if x.device != source.device:
        raise NoComposition
    return source.to(x.dtype).expand(x.shape).clone()


@composition("prims::fma")
def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Dynamo writes steps of optimizers with it; eager rounds the product, too."""
    return x * y + z


@composition(aten._unsafe_index.Tensor)
def _unsafe_index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    result: Tensor = aten.index.Tensor(x, indices)
    return result
