"""The connectionist temporal classification loss.

Torch's backward kernel assumes that log_probs is the result of log_softmax, and returns

    exp(log_probs) - posterior,

where the posterior of a class at a time step is the probability, given the targets, that the
alignment emits it there.  The composition computes it by the forward-backward algorithm over the
labels with blanks between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from adjoint.rules.registry import Cotangents, composition, vjp

aten = torch.ops.aten

# The logarithm of probability zero; finite, so that the difference of two is not NaN.
_LOG_ZERO = -1e30


@dataclass(frozen=True)
class _Labels:
    """The targets with blanks before, between and after them, (batch, positions)."""

    classes: torch.Tensor
    skips: torch.Tensor
    """The label may follow the one two positions before it, without the blank between."""
    start: torch.Tensor
    end: torch.Tensor
    inside: torch.Tensor
    """(time, batch, 1): the time step is within the sequence."""


@composition(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(
    cotangent: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """exp(log_probs) - posterior at each time step within a sequence, zero after its end."""
    if log_probs.dim() == 2:
        return ctc_loss_backward(
            cotangent.reshape(1),
            log_probs.unsqueeze(1),
            targets.reshape(1, -1),
            input_lengths,
            target_lengths,
            neg_log_likelihood.reshape(1),
            log_alpha,
            blank,
            zero_infinity,
        ).squeeze(1)
    labels = _labels(log_probs, targets, input_lengths, target_lengths, blank)
    emitted = log_probs.gather(2, labels.classes.expand(log_probs.shape[0], -1, -1))
    forward = _forward(emitted, labels)
    backward = _backward(emitted, labels)
    total = torch.where(labels.end, forward[-1], _LOG_ZERO).logsumexp(-1, keepdim=True)
    possible = neg_log_likelihood != math.inf
    total = torch.where(possible.unsqueeze(-1), total, 0)
    passed = (torch.stack(forward) + torch.stack(backward) - total).exp()
    posterior = torch.zeros_like(log_probs).scatter_add(
        2, labels.classes.expand(log_probs.shape[0], -1, -1), passed
    )
    slope = torch.where(labels.inside, log_probs.exp() - posterior, 0)
    otherwise = 0.0 if zero_infinity else math.nan
    each = (slope * cotangent.unsqueeze(-1)).transpose(0, 1)
    return torch.where(possible[:, None, None], each, otherwise).transpose(0, 1)


def _labels(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int,
) -> _Labels:
    device = log_probs.device
    steps, lengths = (
        torch.tensor(each, device=device) if not isinstance(each, torch.Tensor) else each.to(device)
        for each in (input_lengths, target_lengths)
    )
    steps, lengths = steps.reshape(-1), lengths.reshape(-1)
    # Where lengths are data, the size of `targets` bounds the longest.
    known = not isinstance(target_lengths, torch.Tensor)
    longest = max(target_lengths, default=0) if known else targets.shape[-1]
    positions = torch.arange(2 * longest + 1, device=device)
    which = ((positions - 1).clamp(min=0) // 2).expand(log_probs.shape[1], -1)
    if targets.dim() == 1:
        begins = (lengths.cumsum(0) - lengths).unsqueeze(1)
        found = targets[(begins + which).clamp(max=targets.shape[0] - 1)]
    else:
        found = targets.gather(1, which.clamp(max=targets.shape[1] - 1))
    classes = torch.where(positions % 2 == 1, found.to(torch.int64), blank)
    before = torch.cat([classes[:, :2], classes[:, :-2]], 1)
    skips = (positions % 2 == 1) & (positions >= 2) & (classes != before)
    last = 2 * lengths.unsqueeze(1)
    times = torch.arange(log_probs.shape[0], device=device)
    return _Labels(
        classes,
        skips,
        (positions == 0) | ((positions == 1) & (last > 0)),
        (positions == last) | (positions == last - 1),
        (times.unsqueeze(1) < steps).unsqueeze(2),
    )


def _forward(emitted: torch.Tensor, labels: _Labels) -> list[torch.Tensor]:
    """log alpha: over all alignments that end at a position, its own emission included."""
    penalty = _penalty(labels.skips, emitted.dtype)
    ways = torch.stack([penalty, torch.zeros_like(penalty), torch.zeros_like(penalty)], -1)
    given, inside = emitted.unbind(), labels.inside.unbind()
    states = [torch.where(labels.start, given[0], _LOG_ZERO)]
    for step in range(1, emitted.shape[0]):
        before = pad(states[-1], (2, 0), value=_LOG_ZERO).unfold(1, 3, 1)
        reached = (before + ways).logsumexp(-1) + given[step]
        states.append(torch.where(inside[step], reached, states[-1]))
    return states


def _backward(emitted: torch.Tensor, labels: _Labels) -> list[torch.Tensor]:
    """log beta: over all alignments from a position to the end."""
    penalty = pad(_penalty(labels.skips, emitted.dtype), (0, 2))[:, 2:]
    ways = torch.stack([torch.zeros_like(penalty), torch.zeros_like(penalty), penalty], -1)
    given, inside = emitted.unbind(), labels.inside.unbind()
    ended = torch.where(labels.end, torch.zeros_like(given[0]), _LOG_ZERO)
    states = [ended]
    for step in range(emitted.shape[0] - 1, 0, -1):
        after = pad(states[-1] + given[step], (0, 2), value=_LOG_ZERO).unfold(1, 3, 1)
        states.append(torch.where(inside[step], (after + ways).logsumexp(-1), ended))
    return states[::-1]


def _penalty(skips: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(skips, dtype=dtype).masked_fill(~skips, _LOG_ZERO)


@vjp(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(
    cotangent: Sequence[Tensor | None],
    out: Sequence[Tensor],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Cotangents:
    """By torch's backward kernel, in the overload of the forward."""
    packet = aten._ctc_loss_backward
    kernel = packet.Tensor if isinstance(input_lengths, torch.Tensor) else packet.default
    lengths = (input_lengths, target_lengths)
    return (kernel(cotangent[0], log_probs, targets, *lengths, *out, blank, zero_infinity),)
