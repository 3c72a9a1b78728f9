"""Loss functions."""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import NoComposition, composition, require_real

aten = torch.ops.aten


def _require_plain(x: Tensor, weight: Tensor | None) -> None:
    """Decline unless the loss is of a batch, without class weights, in a dtype that kernels sum
    in.
    """
    if x.dim() != 2 or weight is not None or x.dtype not in (torch.float32, torch.float64):
        raise NoComposition


@composition(aten.nll_loss_forward.default)
def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    require_real(x)
    _require_plain(x, weight)
    counts = target != ignored
    safe = torch.where(counts, target, torch.zeros_like(target))
    picked = x.gather(1, safe.unsqueeze(1)).squeeze(1)
    losses = torch.where(counts, -picked, torch.zeros_like(picked))
    total = counts.sum().to(x.dtype)
    if reduction == 0:
        return losses, torch.zeros([], dtype=x.dtype, device=x.device)
    return (losses.sum() / total if reduction == 1 else losses.sum()), total


@composition(aten.nll_loss_backward.default)
def _nll_loss_backward(
    cotangent: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total: Tensor,
) -> Tensor:
    _require_plain(x, weight)
    counts = (target != ignored).unsqueeze(1)
    scale = cotangent / total if reduction == 1 else cotangent
    scale = scale.unsqueeze(1) if reduction == 0 else scale
    classes = torch.arange(x.shape[1], device=x.device)
    chosen = (classes == target.unsqueeze(1)) & counts
    return torch.where(chosen, -scale, torch.zeros([], dtype=x.dtype, device=x.device))


@composition(aten.mse_loss.default)
def _mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    require_real(x, y)
    gap = x - y
    return _reduced(gap * gap, reduction)


@composition(aten.smooth_l1_loss.default)
def _smooth_l1_loss(x: Tensor, y: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    require_real(x, y)
    gap = (x - y).abs()
    if beta == 0:
        return _reduced(gap, reduction)
    return _reduced(torch.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta), reduction)


@composition(aten.huber_loss.default)
def _huber_loss(x: Tensor, y: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    require_real(x, y)
    gap = (x - y).abs()
    near = 0.5 * gap * gap
    return _reduced(torch.where(gap <= delta, near, delta * (gap - 0.5 * delta)), reduction)


@composition(aten.binary_cross_entropy_with_logits.default)
def _bce_with_logits(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    require_real(x, y)
    if pos_weight is not None:
        raise NoComposition
    loss = (1 - y) * x + (-x).clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()
