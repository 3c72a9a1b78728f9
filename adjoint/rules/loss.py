"""Losses whose backward kernels torch cannot differentiate."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from adjoint.graph.losses import MEAN, row_weights
from adjoint.graph.losses import linear_cross_entropy as fused_head
from adjoint.rules.registry import Cotangents, composition, vjp
from adjoint.torch_private.operators import chunked_cross_entropy

aten = torch.ops.aten


@composition(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    cotangent: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = MEAN,
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
    x: Tensor,
    matrix: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    *_: object,
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
    return each / rows.shape[0] if reduction == MEAN else each


@vjp(fused_head)
def fused_head_vjp(
    cotangents: tuple[Tensor | None, ...],
    outs: tuple[Tensor, ...],
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    classes: Tensor | None,
    reduction: int,
    ignored: int,
    dtype: torch.dtype,
    output_mask: list[bool],
) -> Cotangents:
    """The gradients are results already; their own derivative has all logits in memory.

    With p = softmax(x w + b), d = s (p - onehot) and the cotangent d' = dx' w + x dw' + db' of d,
    that of the logits is z' = loss' d + s p (d' - sum(p d')).
    """
    of_loss, of_dx, of_dw, of_db = cotangents
    asked = output_mask[1:]
    if of_loss is not None and cotangents[1:] == (None, None, None) and any(asked):
        return tuple(
            out * of_loss if wanted else None for out, wanted in zip(outs[1:], asked, strict=True)
        )
    logits = (x @ w if bias is None else torch.addmm(bias, x, w)).to(dtype)
    s = row_weights(target, classes, reduction, ignored, dtype).unsqueeze(1)
    p = torch.softmax(logits, 1)
    place = torch.where(target != ignored, target, 0).unsqueeze(1)
    d = s * p.scatter_add(1, place, -torch.ones_like(place, dtype=dtype))
    of_logits = torch.zeros_like(d) if of_loss is None else of_loss * d
    narrow = d.to(x.dtype)
    to_d = [
        of_dx @ w if of_dx is not None else None,
        x @ of_dw if of_dw is not None else None,
        of_db.expand_as(narrow) if of_db is not None else None,
    ]
    present = [each.to(dtype) for each in to_d if each is not None]
    if present:
        through = functools.reduce(torch.add, present)
        of_logits = of_logits + s * p * (through - (p * through).sum(1, keepdim=True))
    of_logits = of_logits.to(x.dtype)
    of_x, of_w = of_logits @ w.t(), of_logits.t() @ x
    if of_dw is not None:
        of_x = of_x + narrow @ of_dw.t()
    if of_dx is not None:
        of_w = of_w + narrow.t() @ of_dx
    return of_x, of_w.t(), None if bias is None else of_logits.sum(0)
