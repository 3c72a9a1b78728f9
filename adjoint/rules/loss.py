"""Losses whose backward kernels torch cannot differentiate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjoint.rules.registry import composition
from adjoint.torch_private.operators import chunked_cross_entropy

aten = torch.ops.aten

_NONE, _MEAN = 0, 1


@composition(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    cotangent: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Of sum_{j != y} w_y max(0, margin - x_y + x_j)^p / classes."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    label = target.reshape(-1, 1)
    gap = margin - rows.gather(1, label) + rows
    others = torch.arange(rows.shape[1], device=x.device) != label
    active = others & (gap > 0)
    slope = active.to(x.dtype) if p == 1 else torch.where(active, 2 * gap, 0)
    if weight is not None:
        slope = slope * weight.index_select(0, label.squeeze(1)).unsqueeze(1)
    slope = slope * (_shared(cotangent, reduction, rows).unsqueeze(-1) / rows.shape[1])
    return slope.scatter_add(1, label, -slope.sum(1, keepdim=True)).reshape(x.shape)


@composition(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    cotangent: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Of sum_{y in labels} sum_{j not in labels} max(0, 1 - x_y + x_j) / classes.

    The labels of a row end at the first negative one.
    """
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    labels, marked = target.reshape(rows.shape), is_target.reshape(rows.shape)
    given = (labels >= 0).to(x.dtype).cumprod(1)
    columns = labels.clamp(min=0)
    gap = 1 - rows.gather(1, columns).unsqueeze(2) + rows.unsqueeze(1)
    active = (gap > 0).to(x.dtype) * given.unsqueeze(2) * (1 - marked).unsqueeze(1)
    slope = active.sum(1).scatter_add(1, columns, -active.sum(2)) / rows.shape[1]
    return (slope * _shared(cotangent, reduction, rows).unsqueeze(-1)).reshape(x.shape)


def linear_cross_entropy(
    x: Any, matrix: Any, target: Any, bias: Any, weight: Any, ignore_index: int, *_: object
) -> Tensor:
    """The loss of each row.  Torch's op computes it in chunks, which autograd does not see."""
    logits = torch.nn.functional.linear(x, matrix, bias)
    return torch.nn.functional.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction="none"
    )


_CHUNKED = chunked_cross_entropy()
if _CHUNKED is not None:
    composition(_CHUNKED)(linear_cross_entropy)


def _shared(cotangent: torch.Tensor, reduction: int, rows: torch.Tensor) -> torch.Tensor:
    """The cotangent of each row's own loss."""
    each = cotangent.reshape(-1).expand(rows.shape[0])
    return each / rows.shape[0] if reduction == _MEAN else each
