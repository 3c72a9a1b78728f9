"""Softmax, log-softmax, their backward operators, and logsumexp."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adjoint.lower.compositions.registry import composition, require_real_with_axes, widened

aten = torch.ops.aten


@composition(aten._softmax.default)
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    require_real_with_axes(x)
    wide = widened(x)
    e = (wide - wide.amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True)).to(torch.float32 if half_to_float else x.dtype)


@composition(aten._log_softmax.default)
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    require_real_with_axes(x)
    wide = widened(x)
    shifted = wide - wide.amax(dim, keepdim=True)
    result = shifted - shifted.exp().sum(dim, keepdim=True).log()
    return result.to(torch.float32 if half_to_float else x.dtype)


@composition(aten._softmax_backward_data.default)
def _softmax_backward(cotangent: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    require_real_with_axes(y)
    g, wide = widened(cotangent), widened(y)
    return (wide * (g - (g * wide).sum(dim, keepdim=True))).to(dtype)


@composition(aten._log_softmax_backward_data.default)
def _log_softmax_backward(cotangent: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    require_real_with_axes(y)
    g, wide = widened(cotangent), widened(y)
    return (g - wide.exp() * g.sum(dim, keepdim=True)).to(dtype)


@composition(aten.logsumexp.default)
def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    require_real_with_axes(x)
    highest = x.amax(dim, keepdim=True)
    safe = torch.where(highest.abs() == math.inf, torch.zeros_like(highest), highest)
    total = (x - safe).exp().sum(dim, keepdim=True).log() + safe
    return total if keepdim else total.squeeze(dim)
