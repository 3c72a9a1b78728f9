"""Segment reductions: their backward kernel as a composition."""

from __future__ import annotations

import torch
from torch import Tensor

from adjoint.rules.derived import by_rule
from adjoint.rules.registry import composition

aten = torch.ops.aten


@composition(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Each element receives a share of its segment's cotangent.

    All elements equal to a maximum or minimum share its cotangent equally.
    """
    if lengths is not None:
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    else:
        assert offsets is not None, "segments have lengths or offsets"
        ends, starts = offsets[..., 1:], offsets[..., :-1]
    rows = torch.arange(x.shape[axis], device=x.device).expand((*ends.shape[:-1], x.shape[axis]))
    segment = torch.searchsorted(ends.contiguous(), rows.contiguous(), right=True)
    covered = segment < ends.shape[-1]
    segment = segment.clamp(max=ends.shape[-1] - 1)
    missing = (1,) * (x.dim() - axis - 1)

    def spread(each: torch.Tensor) -> torch.Tensor:
        """For each element, the value of its segment."""
        return each.gather(axis, segment.reshape(segment.shape + missing).expand(x.shape))

    def totals(each: torch.Tensor) -> torch.Tensor:
        index = segment.reshape(segment.shape + missing).expand(x.shape)
        return torch.zeros_like(out).scatter_add(axis, index, each)

    if reduce == "sum":
        found = spread(cotangent)
    elif reduce == "mean":
        sizes = (ends - starts).clamp(min=1).reshape(ends.shape + missing)
        found = spread(cotangent / sizes)
    elif reduce in ("max", "min"):
        chosen = (x == spread(out)).to(x.dtype)
        found = chosen * spread(cotangent / totals(chosen).clamp(min=1))
    else:
        zero = x == 0
        filled = torch.where(zero, 1, x)
        zeros = totals(zero.to(x.dtype))
        first = 1 if initial is None else initial
        index = segment.reshape(segment.shape + missing).expand(x.shape)
        ones = torch.full_like(out, first)
        others = by_rule(aten.scatter_reduce.two, ones, axis, index, filled, "prod")
        alone = zero & (spread(zeros) == 1)
        found = torch.where(alone, spread(cotangent * others), spread(cotangent * out) / filled)
    return torch.where(covered.reshape(covered.shape + missing), found, 0)
