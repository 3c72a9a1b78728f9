"""Ops whose derivative is zero: constructors of constants, and random draws."""

from __future__ import annotations

import torch

from adjoint.rules.registry import NON_DIFFERENTIABLE

aten = torch.ops.aten

NON_DIFFERENTIABLE |= {
    aten.bernoulli.default,
    aten.bernoulli.p,
    aten.bernoulli.Tensor,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.exponential.default,
    aten.geometric.default,
    aten.cauchy.default,
    aten.log_normal.default,
    aten.random.default,
}

NON_DIFFERENTIABLE |= {
    getattr(packet, name)
    for packet in (aten.rand_like, aten.randn_like, aten.randint_like)
    for name in packet.overloads()
}
