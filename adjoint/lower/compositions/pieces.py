"""Stacking, and indexing without checks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import composition

aten = torch.ops.aten


@composition(aten.stack.default)
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dim = dim % (tensors[0].dim() + 1)
    return torch.cat([each.unsqueeze(dim) for each in tensors], dim)


@composition(aten._unsafe_index.Tensor)
def _unsafe_index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    result: Tensor = aten.index.Tensor(x, indices)
    return result
