"""Attention: the backward of each fused kernel as a composition that can be differentiated again.

With scores S = scale q k^T + bias and weights P = softmax(S), the result is P v, and

    dv = P^T do,   dP = do v^T,   dS = P (dP - sum(P dP)),   dq = scale dS k,   dk = scale dS^T q.

The fused kernels save logsumexp(S) instead of P.  Eager gives that no derivative, so P is
recomputed from q and k here.  Fully masked rows have P = 0, as in the kernels.

With dropout the result is (D P) v, where D is 1 / (1 - p) for what is kept and 0 for what is not.
The kernels save the state of the random number generator instead of D, and draw D again backward;
`_kept` lets them tell it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from adjoint.open_types import OpArgument
from adjoint.rules.registry import composition_by_name, vjp
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

_TOP_LEFT, _BOTTOM_RIGHT = 1, 2


@dataclass(frozen=True)
class _Cotangents:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor
    """Of the scores, to which the bias may have been broadcast."""


def _pull_back(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    allowed: torch.Tensor | None,
    scale: float | None,
    dropped: torch.Tensor | None = None,
) -> _Cotangents:
    """Of attention over (..., heads, length, width); a key head may serve several query heads.

    `dropped`: what dropout multiplies the weights by.
    """
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
    used = weights
    if dropped is not None:
        weights_cotangent, used = weights_cotangent * dropped, weights * dropped
    product = weights * weights_cotangent
    scores_cotangent = product - weights * product.sum(-1, keepdim=True)
    of_query = (scores_cotangent @ key) * factor
    of_key = (scores_cotangent.transpose(-2, -1) @ query) * factor
    of_value = used.transpose(-2, -1) @ cotangent
    if groups != 1:
        of_key = of_key.unflatten(-3, (shape[-3], groups)).sum(-3)
        of_value = of_value.unflatten(-3, (shape[-3], groups)).sum(-3)
    return _Cotangents(of_query, of_key, of_value, scores_cotangent)


def _softmax(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Over the last axis; a position that is not allowed has weight and derivative zero."""
    if allowed is None:
        return scores.softmax(-1)
    # Finite, so that the derivative of a fully masked row is not NaN.
    lowest = torch.finfo(scores.dtype).min
    weights: torch.Tensor = scores.masked_fill(~allowed, lowest).softmax(-1)
    return weights.masked_fill(~allowed, 0)


def _causal(query: torch.Tensor, key: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """Query i sees keys up to i + shift."""
    rows = torch.arange(query.shape[-2], device=query.device)
    columns = torch.arange(key.shape[-2], device=query.device)
    allowed: torch.Tensor = columns <= rows.unsqueeze(-1) + shift
    return allowed


_NOT_TOLD = (
    "a fused attention kernel does not tell which weights it dropped; "
    "use the math backend of scaled_dot_product_attention"
)


def _refuse_dropout(probability: float) -> None:
    if probability != 0:
        raise NotImplementedError(_NOT_TOLD)


def _kept(
    backward: OpOverload,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    named: Mapping[str, object],
) -> torch.Tensor:
    """Which weights the kernel `backward` keeps, as (batch, heads, rows, columns).

    It returns dv = (D P)^T do.  With queries 0 and logsumexp 0 all weights P are 1; with do of
    columns of the unit matrix dv then has rows of D, as many in a call as a value has elements.
    """
    if "philox_seed" not in named:
        raise NotImplementedError(_NOT_TOLD)
    batch, heads, rows, width = query.shape
    columns, count = key.shape[-2], value.shape[-1]
    if not isinstance(rows, int):
        raise NotImplementedError(
            "a fused attention kernel tells which weights it dropped for a few queries at a time, "
            "and the number of queries is not constant; use static sizes, or the math backend of "
            "scaled_dot_product_attention"
        )
    logsumexp = named["logsumexp"]
    assert isinstance(logsumexp, torch.Tensor)
    given: dict[str, object] = {
        **named,
        "query": query.new_zeros(query.shape),
        "key": query.new_zeros((batch, heads, columns, width)),
        "value": query.new_zeros((batch, heads, columns, count)),
        "out": query.new_zeros((batch, heads, rows, count)),
        "logsumexp": torch.zeros_like(logsumexp),
        "attn_bias": None,
        "grad_input_mask": [True, True, True, False],
        "is_causal": False,
    }
    parameters = [each.name for each in backward._schema.arguments]
    unit = torch.eye(rows, dtype=query.dtype, device=query.device)
    found = []
    for start in range(0, rows, count):
        some = unit[:, start : start + count]
        some = torch.nn.functional.pad(some, (0, count - some.shape[-1]))
        given[parameters[0]] = some.expand(batch, heads, rows, count).contiguous()
        results = backward(**{name: given[name] for name in parameters if name in given})
        found.append(results[2].transpose(-2, -1) > 0)
    return torch.cat(found, -2)[..., :rows, :]


def _summed_to(cotangent: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else cotangent.sum_to_size(bias.shape)


def _dense(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    backward: OpOverload,
    named: Mapping[str, OpArgument],
    shift: int = 0,
) -> _Cotangents:
    """Of (batch, heads, length, width); `named`: what else the kernel `backward` is given."""
    dropout = named["dropout_p"]
    dropped = None
    if dropout:
        kept = _kept(backward, query, key, value, named)
        dropped = kept.to(query.dtype) * (1 / (1 - dropout))
    allowed = _causal(query, key, shift) if named.get("is_causal") else None
    return _pull_back(cotangent, query, key, value, bias, allowed, named.get("scale"), dropped)


_Function: TypeAlias = Callable[..., tuple[torch.Tensor | None, ...]]


def _backward_of_dense(*ops: OpOverload) -> Callable[[_Function], _Function]:
    """Register a composition of kernels for dense batches, which it receives as `backward`."""

    def register(function: _Function) -> _Function:
        for op in ops:
            of_this = functools.partial(function, backward=op)
            composition_by_name(op)(functools.update_wrapper(of_this, function))
        return function

    return register


@_backward_of_dense(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_for_cpu_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    backward: OpOverload,
    **named: object,
) -> tuple[torch.Tensor | None, ...]:
    """The mask is boolean, or added to the scores."""
    of = _dense(cotangent, query, key, value, attn_mask, backward, named)
    return of.query, of.key, of.value


@_backward_of_dense(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    backward: OpOverload,
    **named: object,
) -> tuple[torch.Tensor | None, ...]:
    """A causal mask is aligned to the last query and key."""
    shift = key.shape[-2] - query.shape[-2]
    of = _dense(cotangent, query, key, value, None, backward, named, shift)
    return of.query, of.key, of.value


@vjp(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(
    cotangent: Sequence[torch.Tensor | None],
    out: Sequence[torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    """By the kernel.  Without dropout it does not read the state of the generator.

    That state is on the CPU, and would keep a program that reads it from being a CUDA graph.
    """
    if cotangent[0] is None:
        return None, None, None, None
    y, log_sumexp, *state = out
    if not dropout_p:
        state = [torch.zeros((), dtype=torch.int64, device=query.device)] * 2
    mask = [True, True, True, attn_bias is not None]
    return aten._scaled_dot_product_efficient_attention_backward.default(
        *(cotangent[0], query, key, value, attn_bias, y, log_sumexp, *state),
        dropout_p,
        mask,
        is_causal,
        scale=scale,
    )


@_backward_of_dense(
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
)
def biased_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    *,
    backward: OpOverload,
    **named: OpArgument,
) -> tuple[torch.Tensor | None, ...]:
    """The bias may have a gradient, too."""
    of = _dense(cotangent, query, key, value, attn_bias, backward, named)
    of_bias = _summed_to(of.bias, attn_bias) if named["grad_input_mask"][3] else None
    return of.query, of.key, of.value, of_bias


@_backward_of_dense(
    aten._scaled_dot_product_cudnn_attention_backward.default,
    aten._cudnn_attention_backward.default,
)
def cudnn_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    *,
    backward: OpOverload,
    **named: object,
) -> tuple[torch.Tensor | None, ...]:
    """All sequences must have the same length."""
    if named["cum_seq_q"] is not None or named["cum_seq_k"] is not None:
        raise NotImplementedError("sequences of several lengths in one cuDNN attention call")
    of = _dense(cotangent, query, key, value, attn_bias, backward, named)
    return of.query, of.key, of.value


@composition_by_name(aten._flash_attention_backward.default)
def packed_flash_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    **named: OpArgument,
) -> tuple[torch.Tensor | None, ...]:
    """Of (batch, length, heads, width); with `cum_seq`, of concatenated sequences."""
    _refuse_dropout(named["dropout_p"])
    if any(named.get(f"window_size_{side}") not in (None, -1) for side in ("left", "right")):
        raise NotImplementedError("a window of flash attention")
    starts = (named["cum_seq_q"], named["cum_seq_k"])
    mask = _BOTTOM_RIGHT if named["is_causal"] else 0
    of = _packed(cotangent, query, key, value, None, *starts, mask, named.get("scale"))
    return of.query, of.key, of.value


@composition_by_name(aten._efficient_attention_backward.default)
def packed_efficient_backward(
    cotangent: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    **named: OpArgument,
) -> tuple[torch.Tensor | None, ...]:
    """The same, with a bias."""
    _refuse_dropout(named["dropout_p"])
    if named.get("window_size") not in (None, 0):
        raise NotImplementedError("a window of efficient attention")
    starts = (named["cu_seqlens_q"], named["cu_seqlens_k"])
    mask = named["custom_mask_type"]
    of = _packed(cotangent, query, key, value, bias, *starts, mask, named.get("scale"))
    of_bias = _summed_to(of.bias, bias) if named["bias_requires_grad"] else None
    return of.query, of.key, of.value, of_bias


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
    """Of (batch, length, heads, width), or of concatenated sequences that begin at `starts`."""
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
            last_key = rows.position.unsqueeze(-1)
            if mask == _BOTTOM_RIGHT:
                shifts = starts_k.diff() - starts_q.diff()
                last_key = last_key + shifts[rows.sequence].unsqueeze(-1)
            allowed = allowed & (columns.position <= last_key)
    of = _pull_back(cotangent, query, key, value, bias, allowed, scale)
    return _Cotangents(
        of.query.transpose(-3, -2),
        of.key.transpose(-3, -2),
        of.value.transpose(-3, -2),
        of.bias,
    )


@dataclass(frozen=True)
class _Positions:
    """Of each row: its sequence, and its position in that sequence."""

    sequence: torch.Tensor
    position: torch.Tensor


def _positions(packed: torch.Tensor, starts: torch.Tensor) -> _Positions:
    rows = torch.arange(packed.shape[-2], device=starts.device, dtype=starts.dtype)
    sequence = torch.searchsorted(starts, rows, right=True) - 1
    return _Positions(sequence, rows - starts[sequence])
