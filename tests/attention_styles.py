"""Attention as people write it: spellings that packages and tutorials use, for tests of fusion.

Each style is a function of tensors, with inputs for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, HEADS, GROUPS, ROWS, KEYS, WIDTH = 2, 4, 2, 5, 6, 3
CHANNELS = HEADS * WIDTH
DTYPE = torch.float64
LOW = torch.finfo(DTYPE).min

_GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=_GENERATOR).requires_grad_()


@dataclass(frozen=True)
class Style:
    """One way to write attention."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    name: str


STYLES: list[Style] = []

# They stay as they are: heads are the last axis of the scores; scores are multiplied by a mask.
WRITTEN_OUT = ("einsum_of_heads_last", "masked_by_multiplication")


def style(*inputs: Tensor) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        STYLES.append(Style(function, inputs, function.__name__))
        return function

    return add


QUERY, KEY, VALUE = (drawn(BATCH, HEADS, length, WIDTH) for length in (ROWS, KEYS, KEYS))
ALL = (QUERY, KEY, VALUE)
FEW = (QUERY, drawn(BATCH, GROUPS, KEYS, WIDTH), drawn(BATCH, GROUPS, KEYS, WIDTH))
MERGED = tuple(each.detach().flatten(0, 1).requires_grad_() for each in ALL)
# As attention in images has them: channels before positions.
IMAGES = tuple(drawn(BATCH, CHANNELS, KEYS) for _ in range(3))
BESIDE = tuple(each.detach().transpose(1, 2).contiguous().requires_grad_() for each in ALL)
TOKENS = drawn(BATCH, KEYS, CHANNELS)
PROJECTION = drawn(CHANNELS, 3 * CHANNELS)
PADDING = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
FLAGS = PADDING.bool()
ALLOWED = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(1)


def apart(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one projection, with heads."""
    q, k, v = (x @ weight).chunk(3, -1)
    return tuple(  # type: ignore[return-value]
        each.reshape(BATCH, KEYS, HEADS, WIDTH).transpose(1, 2) for each in (q, k, v)
    )


@style(TOKENS, PROJECTION)
def image_classifier(x: Tensor, weight: Tensor) -> Tensor:
    qkv = (x @ weight).reshape(BATCH, KEYS, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    attn = (q * WIDTH**-0.5) @ k.transpose(-2, -1)
    attn = F.dropout(attn.softmax(dim=-1), 0.0)
    return (attn @ v).transpose(1, 2).reshape(BATCH, KEYS, CHANNELS)


@style(*BESIDE, torch.randn(ROWS, KEYS, dtype=DTYPE))
def operator_reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As the reference of a memory-efficient operator: heads after positions."""
    q, k, v = (each.transpose(1, 2) for each in (q * q.shape[-1] ** -0.5, k, v))
    attn = (q @ k.transpose(-2, -1) + bias).softmax(-1)
    return (attn @ v).transpose(1, 2).contiguous()


@style(TOKENS, PROJECTION)
def causal_by_tril(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = apart(x, weight)
    attn = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    seen = torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8)
    attn = attn.masked_fill(seen[:, :, :KEYS, :KEYS] == 0, float("-inf"))
    return (F.softmax(attn, -1) @ v).transpose(1, 2).contiguous().view(BATCH, KEYS, CHANNELS)


@style(TOKENS, PROJECTION)
def causal_by_triu(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = apart(x, weight)
    mask = torch.triu(torch.full((KEYS, KEYS), float("-inf"), dtype=x.dtype), diagonal=1)
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(WIDTH) + mask
    return torch.matmul(F.softmax(scores.double(), dim=-1).type_as(q), v)


@style(TOKENS, PROJECTION)
def causal_by_arange(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = apart(x, weight)
    at = torch.arange(KEYS)
    scores = torch.where(at[:, None] >= at[None, :], q @ k.mT / WIDTH**0.5, -torch.inf)
    return scores.softmax(-1) @ v


@style(TOKENS, PROJECTION)
def sliding_window(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = apart(x, weight)
    at = torch.arange(KEYS)
    apart_by = at[:, None] - at[None, :]
    scores = (q @ k.mT).masked_fill((apart_by < 0) | (apart_by > 2), torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


@style(*ALL, PADDING)
def padding_by_arithmetic(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    extended = (1.0 - padding[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH) + extended
    return torch.matmul(nn.functional.softmax(scores, dim=-1), v)


@style(*ALL, FLAGS)
def padding_as_flags(q: Tensor, k: Tensor, v: Tensor, flags: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~flags[:, None, None], -1e9)
    return F.softmax(scores, dim=-1) @ v


@style(*MERGED, FLAGS)
def padding_of_merged_heads(q: Tensor, k: Tensor, v: Tensor, flags: Tensor) -> Tensor:
    weights = torch.bmm(q * 0.5, k.transpose(1, 2)).view(BATCH, HEADS, ROWS, KEYS)
    weights = weights.masked_fill(~flags.unsqueeze(1).unsqueeze(2), float("-inf"))
    weights = weights.view(BATCH * HEADS, ROWS, KEYS)
    return torch.bmm(F.softmax(weights, dim=-1), v)


@style(*ALL, PADDING)
def mask_equal_zero(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(padding[:, None, None] == 0, -1e9)
    return torch.matmul(scores.softmax(dim=-1), v)


@style(*ALL)
def scale_of_a_literal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.full([], q.size(-1) ** 0.5, dtype=q.dtype)
    return torch.softmax(q @ k.mT / scale, -1) @ v


@style(*ALL)
def scale_of_a_computed_literal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.sqrt(torch.tensor(WIDTH, dtype=torch.float64))
    return torch.softmax(q @ k.mT / scale, -1) @ v


@style(*ALL, torch.tensor([1.7], dtype=DTYPE))
def scale_that_is_a_buffer(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / scale
    return torch.matmul(torch.softmax(energy, dim=-1), v)


@style(*ALL, drawn(HEADS, 1, 1))
def scale_of_each_head(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    attn = (q @ k.transpose(-2, -1)) * scale.clamp(max=4.0).exp()
    return attn.softmax(-1) @ v


@style(*ALL, ALLOWED)
def scale_after_a_mask(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    low = torch.tensor(torch.finfo(q.dtype).min, dtype=q.dtype)
    scores = torch.where(allowed, torch.matmul(q, k.transpose(-1, -2)), low) / WIDTH**0.5
    return torch.matmul(nn.functional.softmax(scores, dim=-1), v)


@style(*ALL)
def scale_after_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.arange(KEYS, dtype=q.dtype) * 0.1
    return ((q @ k.mT + bias) * 0.5).softmax(-1) @ v


@style(*FEW)
def groups_by_repeat_interleave(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(HEADS // GROUPS, dim=1) for each in (k, v))
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), -1) @ v


@style(*FEW)
def groups_by_expand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def repeated(x: Tensor) -> Tensor:
        wide = x[:, :, None].expand(BATCH, GROUPS, HEADS // GROUPS, KEYS, WIDTH)
        return wide.reshape(BATCH, HEADS, KEYS, WIDTH)

    scores = torch.matmul(q, repeated(k).transpose(2, 3)) * WIDTH**-0.5
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float64).to(q.dtype), repeated(v))


@style(*FEW)
def groups_with_an_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.view(BATCH, GROUPS, HEADS // GROUPS, ROWS, WIDTH)
    scores = torch.einsum("bgnqd,bgkd->bgnqk", q, k) * 0.5
    return torch.einsum("bgnqk,bgkd->bgnqd", scores.softmax(-1), v).flatten(1, 2)


@style(QUERY, drawn(BATCH, KEYS, WIDTH), drawn(BATCH, KEYS, WIDTH))
def one_head_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", weights, v)


@style(QUERY, drawn(BATCH, 1, KEYS, WIDTH), drawn(BATCH, 1, KEYS, WIDTH))
def one_head_by_broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * 0.6) @ k.transpose(-2, -1)).softmax(-1) @ v


@style(*ALL)
def einsum_of_heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.5
    out = torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), v)
    return out.transpose(1, 2).reshape(BATCH, ROWS, CHANNELS)


@style(*BESIDE)
def einsum_of_positions_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
    attention = torch.softmax(energy / (CHANNELS ** (1 / 2)), dim=3)
    return torch.einsum("nhql,nlhd->nqhd", [attention, v]).reshape(BATCH, ROWS, CHANNELS)


@style(*MERGED)
def einsum_of_merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sim = torch.einsum("b i d, b j d -> b i j", q, k) * 0.4
    return torch.einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)


@style(*BESIDE)
def einsum_of_heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(torch.einsum("nlhd,nshd->nlsh", q, k) * 0.5, dim=2)
    return torch.einsum("nlsh,nshd->nlhd", weights, v)


@style(*ALL)
def maximum_subtracted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sim = torch.einsum("bhid,bhjd->bhij", q * 0.5, k)
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)


@style(*ALL, FLAGS)
def masked_in_place(q: Tensor, k: Tensor, v: Tensor, flags: Tensor) -> Tensor:
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * 0.5
    dots.masked_fill_(~flags[:, None, None, :], -torch.finfo(dots.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)


@style(*IMAGES)
def values_before_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.bmm(q.permute(0, 2, 1), k) * CHANNELS**-0.5
    weights = F.softmax(weights, dim=2).permute(0, 2, 1)
    return torch.bmm(v, weights)


@style(*IMAGES)
def softmax_over_the_first_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(k.transpose(1, 2) @ q, dim=1)
    return v @ weights


@style(*ALL)
def keys_before_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((k @ q.mT) / 2, dim=-2).mT @ v


@style(*ALL)
def written_out_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)) @ v


@style(*ALL)
def divided_after_the_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q.div(1.3) @ k.div(1.3).transpose(3, 2), 3).matmul(v) / 2


@style(*(torch.randn(KEYS, BATCH, CHANNELS, dtype=DTYPE).requires_grad_() for _ in range(3)))
def positions_before_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (
        each.contiguous().view(KEYS, BATCH * HEADS, WIDTH).transpose(0, 1) for each in (q, k, v)
    )
    weights = F.softmax(torch.bmm(q * WIDTH**-0.5, k.transpose(1, 2)), dim=-1)
    return torch.bmm(weights, v).transpose(0, 1).contiguous().view(KEYS, BATCH, CHANNELS)


@style(TOKENS, PROJECTION, drawn(CHANNELS, CHANNELS))
def module_whose_weights_are_ignored(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    result, _ = F.multi_head_attention_forward(
        x.transpose(0, 1),
        x.transpose(0, 1),
        x.transpose(0, 1),
        CHANNELS,
        HEADS,
        weight.t(),
        None,
        None,
        None,
        False,
        0.0,
        out,
        None,
        need_weights=True,
    )
    return result


@style(*ALL, ALLOWED, FLAGS)
def two_masks_in_turn(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, flags: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    scores = scores.masked_fill(~allowed, float("-inf"))
    scores = scores.masked_fill(~flags[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


@style(*ALL)
def bias_of_distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = torch.tensor([2.0 ** -(n + 1) for n in range(HEADS)], dtype=q.dtype)
    distance = torch.arange(KEYS) - torch.arange(ROWS)[:, None]
    scores = q @ k.mT + slopes.view(1, HEADS, 1, 1) * distance
    return scores.softmax(-1) @ v


@style(*ALL, ALLOWED)
def masked_by_multiplication(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """A mask that multiplies and subtracts leaves the filled scores at one low number."""
    seen = allowed.to(q.dtype)
    scores = (q @ k.mT) * seen - 1e10 * (1 - seen)
    return scores.softmax(-1) @ v


@style(*ALL)
def one_head_at_a_time(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    outs = [
        torch.softmax(a @ b.transpose(-2, -1) / 2, -1) @ c
        for a, b, c in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)
    ]
    return torch.cat(outs, -1)


@style(*(each.detach()[:, 0].clone().requires_grad_() for each in ALL), ALLOWED)
def one_head_in_a_batch(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
    return F.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1) @ v


@style(*(drawn(BATCH, 2, GROUPS, length, WIDTH) for length in (ROWS, KEYS, KEYS)))
def windows_with_an_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


@style(*ALL, PADDING)
def mask_that_is_subtracted(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)).div(math.sqrt(WIDTH))
    scores = scores.sub((1 - padding[:, None, None, :].to(q.dtype)) * 10000.0)
    return scores.softmax(-1).matmul(v)


@style(*ALL)
def distances_that_are_subtracted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = 2.0 ** -torch.arange(1, HEADS + 1, dtype=q.dtype)
    distance = (torch.arange(KEYS) - torch.arange(ROWS)[:, None]).abs()
    return (q @ k.mT * 0.5 - slopes[:, None, None] * distance).softmax(-1) @ v


@style(*ALL, ALLOWED)
def scaled_by_a_sum(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    mask = torch.zeros(ROWS, KEYS, dtype=q.dtype).masked_fill(~allowed, float("-inf"))
    return torch.add(mask, q @ k.mT, alpha=0.25).softmax(-1) @ v


@style(*ALL)
def scores_that_are_subtracted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sub(torch.arange(KEYS, dtype=q.dtype), -q @ k.mT, alpha=0.5).softmax(-1) @ v


@style(*ALL, ALLOWED)
def filled_with_one_like_the_scores(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.mT
    scores = torch.where(allowed, scores, torch.full_like(scores, float("-inf")))
    return scores.softmax(-1) @ v


@style(*ALL, ALLOWED)
def filled_with_multiples_of_ones(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.mT
    scores = torch.where(allowed > 0, scores, -9e15 * torch.ones_like(scores))
    return scores.softmax(-1) @ v


@style(*ALL, FLAGS)
def filled_by_an_index(q: Tensor, k: Tensor, v: Tensor, flags: Tensor) -> Tensor:
    scores = q @ k.mT
    scores[~flags[:, None, None, :].expand_as(scores)] = float("-inf")
    return scores.softmax(-1) @ v


@style(*ALL, PADDING.flip(0).roll(1, 1) * torch.tensor([[1], [0]]))
def weights_that_are_filled_too(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
    """As in recognizers of speech: a row without any key is zero."""
    mask = padding.unsqueeze(1).unsqueeze(1).eq(0)
    scores = (q @ k.mT).masked_fill(mask, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(mask, 0.0) @ v


@style(*ALL, PADDING * torch.tensor([[1], [0]]))
def weights_that_are_filled_too_after_infinity(
    q: Tensor, k: Tensor, v: Tensor, padding: Tensor
) -> Tensor:
    mask = padding.unsqueeze(1).unsqueeze(1).eq(0)
    scores = (q @ k.mT).masked_fill(mask, -math.inf)
    return torch.softmax(scores, dim=-1).masked_fill(mask, 0.0) @ v


@style(
    *(drawn(2 * BATCH, HEADS, KEYS, WIDTH) for _ in range(3)),
    torch.randn(HEADS, KEYS, KEYS, dtype=DTYPE, generator=_GENERATOR),
    torch.randn(2, KEYS, KEYS, dtype=DTYPE, generator=_GENERATOR),
)
def windows_with_a_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """As windows that are shifted: the mask has an axis for windows, and scores have it there."""
    attn = (q * WIDTH**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    attn = attn.view(BATCH, 2, HEADS, KEYS, KEYS) + mask.unsqueeze(1).unsqueeze(0)
    out: Tensor = attn.view(-1, HEADS, KEYS, KEYS).softmax(-1) @ v
    return out


@style(*FEW, ALLOWED, PADDING)
def groups_with_masks(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, padding: Tensor) -> Tensor:
    q = q.view(BATCH, GROUPS, HEADS // GROUPS, ROWS, WIDTH)
    scores = torch.einsum("bgnqd,bgkd->bgnqk", q, k) * 0.5
    scores = scores.masked_fill(~allowed, -1e9)
    scores = scores.masked_fill(padding[:, None, None, None, :] == 0, -1e9)
    return torch.einsum("bgnqk,bgkd->bgnqd", scores.softmax(-1), v).flatten(1, 2)


@style(QUERY, drawn(BATCH, KEYS, WIDTH), drawn(BATCH, KEYS, WIDTH), ALLOWED)
def one_head_for_rows_of_all(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Rows of all heads are rows of one product, and heads an axis between them for the mask."""
    q = q.transpose(1, 2).reshape(BATCH, ROWS * HEADS, WIDTH)
    scores = torch.bmm(q, k.transpose(1, 2)).view(BATCH, ROWS, HEADS, KEYS)
    scores = torch.where(allowed[None, :, None], scores, LOW)
    weights = scores.softmax(-1).view(BATCH, ROWS * HEADS, KEYS)
    return torch.bmm(weights, v).view(BATCH, ROWS, CHANNELS)
