"""Activations with several inputs or outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import composition, require_real, widened

aten = torch.ops.aten


@composition(aten.glu.default)
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    require_real(x)
    left, right = x.chunk(2, dim)
    return left * right.sigmoid()


@composition(aten.log_sigmoid_forward.default)
def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    require_real(x)
    wide = widened(x)
    e = torch.exp(-wide.abs())
    return (wide.clamp_max(0) - torch.log1p(e)).to(x.dtype), e.to(x.dtype)
