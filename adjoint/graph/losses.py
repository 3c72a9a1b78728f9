"""The cross-entropy of a linear head, whose logits are computed a few rows at a time.

    z = x @ w + bias,   loss = sum_n s_n (logsumexp(z_n) - z_n[target_n])

A row has the weight s_n: that of its class, zero if it is ignored, divided by the sum of all if the
loss is a mean.  The derivative with respect to z is d = s (softmax(z) - onehot(target)); with d of
a few rows in memory, their share of the gradients

    dx = d @ w^T,   dw = x^T @ d,   dbias = sum_n d_n

is computed at once, so that neither z nor d is ever there as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from adjoint.torch_private.operators import OpOverload

# The logits of a chunk of rows have about this many bytes: enough for a fast matrix product.
CHUNK_BYTES = 32 << 20
MIN_CHUNK_ROWS = 64

MEAN, SUM = 1, 2


def row_weights(
    target: Tensor, classes: Tensor | None, reduction: int, ignored: int, dtype: torch.dtype
) -> Tensor:
    """The weight of each row in the loss."""
    counted = target != ignored
    if classes is None:
        weights = counted.to(dtype)
    else:
        weights = torch.where(counted, classes[torch.where(counted, target, 0)], 0).to(dtype)
    return torch.where(counted, weights / weights.sum(), 0) if reduction == MEAN else weights


@torch.library.custom_op("adjoint::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    classes: Tensor | None,
    reduction: int,
    ignored: int,
    dtype: torch.dtype,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients with respect to `x`, `w` and `bias`; empty if not asked for.

    `dtype`: that of the logits, for the loss.  `output_mask`: which results are asked for.
    """
    rows, classes_count = x.shape[0], w.shape[1]
    weights = row_weights(target, classes, reduction, ignored, dtype)
    loss = torch.zeros((), dtype=dtype, device=x.device)
    _, *asked = output_mask
    of_x, of_w, of_bias = _zeros((x, w, bias), asked)
    step = max(MIN_CHUNK_ROWS, CHUNK_BYTES // max(1, classes_count * dtype.itemsize))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        logits = x[part] @ w if bias is None else torch.addmm(bias, x[part], w)
        logits = logits.to(dtype)
        weight = weights[part]
        counted = target[part] != ignored
        place = torch.where(counted, target[part], 0).unsqueeze(1)
        logarithms = torch.log_softmax(logits, 1)
        terms = -logarithms.gather(1, place).squeeze(1) * weight
        loss += torch.where(counted, terms, 0).sum()
        if not any(asked):
            continue
        derivative = logarithms.exp_().mul_(weight.unsqueeze(1))
        derivative.scatter_add_(1, place, -weight.unsqueeze(1))
        derivative = derivative.to(x.dtype)
        if asked[0]:
            torch.mm(derivative, w.t(), out=of_x[part])
        if asked[1]:
            of_w.addmm_(x[part].t(), derivative)
        if asked[2]:
            of_bias += derivative.sum(0)
    if reduction == MEAN:
        loss = torch.where((target != ignored).any(), loss, math.nan)
    return loss, of_x, of_w, of_bias


@_linear_cross_entropy.register_fake
def _(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    classes: Tensor | None,
    reduction: int,
    ignored: int,
    dtype: torch.dtype,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = x.new_empty((), dtype=dtype)
    of_x, of_w, of_bias = _zeros((x, w, bias), output_mask[1:])
    return loss, of_x, of_w, of_bias


def _zeros(inputs: tuple[Tensor, Tensor, Tensor | None], asked: Sequence[bool]) -> Iterator[Tensor]:
    """The gradients before any row is added; those that are not asked for are empty."""
    for each, is_asked in zip(inputs, asked, strict=True):
        yield torch.zeros_like(each) if is_asked and each is not None else inputs[0].new_empty(0)


linear_cross_entropy: OpOverload = torch.ops.adjoint.linear_cross_entropy.default
