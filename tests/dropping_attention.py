"""Fused attention with dropout on a CPU, as the kernels of a GPU compute it.

torch has no such kernels for a CPU.  `registered_kernels` registers some under the names of those
of a GPU: forward they draw a seed from torch's generator and return it, backward they draw the same
weights again from that seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adjoint.torch_private.operators import named_arguments

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
BACKWARD = {
    "flash": aten._scaled_dot_product_flash_attention_backward.default,
    "efficient": aten._scaled_dot_product_efficient_attention_backward.default,
    "cudnn": aten._scaled_dot_product_cudnn_attention_backward.default,
}


def drawn_seed() -> Tensor:
    """What a call draws from the generator."""
    return torch.randint(1 << 40, (2,))


def kept(seed: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Which weights a call that drew this seed keeps."""
    generator = torch.Generator().manual_seed(int(seed.view(torch.int64).flatten()[0]))
    return torch.rand(shape, generator=generator) >= p


def _scores(q: Tensor, k: Tensor, named: Any) -> Tensor:
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if named.get("scale") is None else named.get("scale"))
    scores = scores if named.get("attn_bias") is None else scores + named["attn_bias"]
    seen = torch.ones_like(scores).bool().tril()
    masked: Tensor = scores.masked_fill(~seen, -torch.inf) if named.get("is_causal") else scores
    return masked


def _forward(op: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    named: Any = named_arguments(op, args, kwargs)
    q, k, v, p = (named.get(name, 0.0) for name in ("query", "key", "value", "dropout_p"))
    scores, seed = _scores(q, k, named), drawn_seed()
    out = scores.softmax(-1) * kept(seed, scores.shape, p) / (1 - p) @ v
    logsumexp = scores.logsumexp(-1)
    if op is EFFICIENT:
        return out, _padded(logsumexp), seed[0], seed[1]
    states = seed.view(torch.uint64), torch.zeros((), dtype=torch.uint64)
    return out, logsumexp, None, None, q.shape[2], k.shape[2], *states, q.new_empty(0)


def _padded(logsumexp: Tensor) -> Tensor:
    """To a multiple of 32 rows, as the kernel returns it."""
    padded: Tensor = torch.nn.functional.pad(logsumexp, (0, -logsumexp.shape[-1] % 32)).float()
    return padded


def _pulled_back(backward: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """The cotangents of queries, keys and values, from what a forward kernel returned."""
    named: Any = named_arguments(backward, args, kwargs)
    q, k, v, p = (named.get(name, 0.0) for name in ("query", "key", "value", "dropout_p"))
    g: Any = args[0] if args else named[backward._schema.arguments[0].name]
    scores = _scores(q, k, named)
    logsumexp = named["logsumexp"][..., : q.shape[2], None]
    weights = (scores - logsumexp).exp()
    dropped = kept(named["philox_seed"], scores.shape, p) / (1 - p)
    of_scores = weights * (g @ v.mT * dropped - (g * named["out"]).sum(-1, keepdim=True))
    of_scores = of_scores * (
        q.shape[-1] ** -0.5 if named.get("scale") is None else named.get("scale")
    )
    of_bias = [of_scores] if "grad_input_mask" in named else []
    return of_scores @ k, of_scores.mT @ q, (weights * dropped).mT @ g, *of_bias


@contextlib.contextmanager
def registered_kernels() -> Iterator[None]:
    """The kernels, while the context lasts."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for op in (FLASH, EFFICIENT):
            library.impl(op, partial(_forward, op), "CPU")
        for op in BACKWARD.values():
            library.impl(op, partial(_pulled_back, op), "CPU")
        yield
    finally:
        library._destroy()


def chosen_for(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout_p: float = 0.0, *, scale: Any = None
) -> Tensor:
    """What `scaled_dot_product_attention` does on a GPU."""
    if mask is None:
        return FLASH(q, k, v, dropout_p, False, False, scale=scale)[0]  # type: ignore[no-any-return]
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(q.dtype)
    bias = mask.expand(*q.shape[:3], k.shape[2])
    return EFFICIENT(q, k, v, bias, True, dropout_p, False, scale=scale)[0]  # type: ignore[no-any-return]


def attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, p: float, scale: float
) -> Tensor:
    """Written out for eager, with the weights dropped that the kernel drops."""
    scores = q @ k.mT * scale
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(q.dtype).min)
    return scores.softmax(-1) * kept(drawn_seed(), scores.shape, p) / (1 - p) @ v
