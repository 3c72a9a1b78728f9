"""Attention: the backward of each fused kernel as a composition that can be differentiated again.

With scores S = scale q k^T + bias and weights P = softmax(S), the result is P v, and

    dv = P^T do,   dP = do v^T,   dS = P (dP - sum(P dP)),   dq = scale dS k,   dk = scale dS^T q.

The fused kernels save the log of the sum of exponentials instead of P.  Eager gives that no
derivative, so P is computed again from q and k here.  Fully masked rows have P = 0, as the
kernels have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from adjoint.rules.registry import composition

aten = torch.ops.aten

_TOP_LEFT, _BOTTOM_RIGHT = 1, 2


@dataclass(frozen=True)
class _Cotangents:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor
    """Of the scores; the bias may have been broadcast to them."""


def _pull_back(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    allowed: torch.Tensor | None,
    scale: float | None,
) -> _Cotangents:
    """Of attention over (..., heads, length, width); a key may serve a group of query heads."""
    groups = query.shape[-3] // key.shape[-3]
    shape = key.shape
    if groups != 1:
        key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.transpose(-2, -1)) * factor
    if bias is not None and bias.dtype == torch.bool:
        allowed, bias = (bias if allowed is None else allowed & bias), None
    if bias is not None:
        scores = scores + bias
        unmasked = bias != -math.inf
        allowed = unmasked if allowed is None else allowed & unmasked
    weights = _softmax(scores, allowed)
    weights_cotangent = cotangent @ value.transpose(-2, -1)
    product = weights * weights_cotangent
    scores_cotangent = product - weights * product.sum(-1, keepdim=True)
    of_query = (scores_cotangent @ key) * factor
    of_key = (scores_cotangent.transpose(-2, -1) @ query) * factor
    of_value = weights.transpose(-2, -1) @ cotangent
    if groups != 1:
        of_key = of_key.unflatten(-3, (shape[-3], groups)).sum(-3)
        of_value = of_value.unflatten(-3, (shape[-3], groups)).sum(-3)
    return _Cotangents(of_query, of_key, of_value, scores_cotangent)


def _softmax(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Over the last axis; zero where nothing is allowed, and so are the derivatives there."""
    if allowed is None:
        return scores.softmax(-1)
    # A finite number, so that a row of nothing else has no NaN in its derivative.
    lowest = torch.finfo(scores.dtype).min
    weights: torch.Tensor = scores.masked_fill(~allowed, lowest).softmax(-1)
    return weights.masked_fill(~allowed, 0)


def _causal(query: torch.Tensor, key: torch.Tensor, shift: Any = 0) -> torch.Tensor:
    """Query i sees keys up to i + shift."""
    rows = torch.arange(query.shape[-2], device=query.device)
    columns = torch.arange(key.shape[-2], device=query.device)
    seen: torch.Tensor = columns <= rows.unsqueeze(-1) + shift
    return seen


def _refuse_dropout(probability: float) -> None:
    if probability != 0:
        raise NotImplementedError(
            "which weights a fused attention kernel dropped is known to the kernel alone; "
            "use the math backend of scaled_dot_product_attention"
        )


def _summed_to(cotangent: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else cotangent.sum_to_size(bias.shape)


@composition(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_for_cpu_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Masks are added to the scores."""
    _refuse_dropout(dropout_p)
    allowed = _causal(query, key) if is_causal else None
    made = _pull_back(cotangent, query, key, value, attn_mask, allowed, scale)
    return made.query, made.key, made.value


@composition(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> Any:
    """The last query sees all keys."""
    _refuse_dropout(dropout_p)
    shift = key.shape[-2] - query.shape[-2]
    allowed = _causal(query, key, shift) if is_causal else None
    made = _pull_back(cotangent, query, key, value, None, allowed, scale)
    return made.query, made.key, made.value


@composition(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """The bias has a derivative."""
    _refuse_dropout(dropout_p)
    allowed = _causal(query, key) if is_causal else None
    made = _pull_back(cotangent, query, key, value, attn_bias, allowed, scale)
    bias = _summed_to(made.bias, attn_bias) if grad_input_mask[3] else None
    return made.query, made.key, made.value, bias


@composition(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def overrideable_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    grad_input_mask: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> Any:
    """What another vendor's kernel computes."""
    return efficient_backward(
        cotangent,
        query,
        key,
        value,
        attn_bias,
        out,
        logsumexp,
        philox_seed,
        philox_offset,
        dropout_p,
        grad_input_mask,
        is_causal,
        scale=scale,
    )


@composition(
    aten._scaled_dot_product_cudnn_attention_backward.default,
    aten._cudnn_attention_backward.default,
)
def cudnn_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    attn_bias: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    """Sequences of one length."""
    _refuse_dropout(dropout_p)
    if cum_seq_q is not None or cum_seq_k is not None:
        raise NotImplementedError("sequences of several lengths in one cuDNN attention call")
    allowed = _causal(query, key) if is_causal else None
    made = _pull_back(cotangent, query, key, value, attn_bias, allowed, scale)
    return made.query, made.key, made.value


@composition(aten._flash_attention_backward.default)
def packed_flash_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,
    unused: Any,
    *,
    scale: float | None = None,
    window_size_left: Any = None,
    window_size_right: Any = None,
) -> Any:
    """Heads are the last axis but one; with `cum_seq`, all sequences lie one after the other."""
    _refuse_dropout(dropout_p)
    if window_size_left not in (None, -1) or window_size_right not in (None, -1):
        raise NotImplementedError("a window of flash attention")
    mask = _BOTTOM_RIGHT if is_causal else 0
    made = _packed(cotangent, query, key, value, None, cum_seq_q, cum_seq_k, mask, scale)
    return made.query, made.key, made.value


@composition(aten._efficient_attention_backward.default)
def packed_efficient_backward(
    cotangent: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    out: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    logsumexp: Any,
    dropout_p: float,
    philox_seed: Any,
    philox_offset: Any,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> Any:
    """The same, with a bias."""
    _refuse_dropout(dropout_p)
    if window_size not in (None, 0):
        raise NotImplementedError("a window of efficient attention")
    made = _packed(
        cotangent, query, key, value, bias, cu_seqlens_q, cu_seqlens_k, custom_mask_type, scale
    )
    of_bias = _summed_to(made.bias, bias) if bias_requires_grad else None
    return made.query, made.key, made.value, of_bias


def _packed(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    starts_q: torch.Tensor | None,
    starts_k: torch.Tensor | None,
    mask: int,
    scale: float | None,
) -> _Cotangents:
    """Of (batch, length, heads, width), or of sequences that begin at `starts`."""
    cotangent, query, key, value = (
        each.transpose(-3, -2) for each in (cotangent, query, key, value)
    )
    allowed = None
    if starts_q is None or starts_k is None:
        if mask:
            shift = key.shape[-2] - query.shape[-2] if mask == _BOTTOM_RIGHT else 0
            allowed = _causal(query, key, shift)
    else:
        rows, columns = _positions(query, starts_q), _positions(key, starts_k)
        allowed = rows.sequence.unsqueeze(-1) == columns.sequence
        if mask:
            seen = rows.place.unsqueeze(-1)
            if mask == _BOTTOM_RIGHT:
                lengths = starts_k.diff() - starts_q.diff()
                seen = seen + lengths[rows.sequence].unsqueeze(-1)
            allowed = allowed & (columns.place <= seen)
    made = _pull_back(cotangent, query, key, value, bias, allowed, scale)
    return _Cotangents(
        made.query.transpose(-3, -2),
        made.key.transpose(-3, -2),
        made.value.transpose(-3, -2),
        made.bias,
    )


@dataclass(frozen=True)
class _Positions:
    sequence: torch.Tensor
    place: torch.Tensor


def _positions(packed: torch.Tensor, starts: torch.Tensor) -> _Positions:
    """Of each row of `packed`: which sequence it is in, and where in it."""
    rows = torch.arange(packed.shape[-2], device=starts.device, dtype=starts.dtype)
    sequence = torch.searchsorted(starts, rows, right=True) - 1
    return _Positions(sequence, rows - starts[sequence])
