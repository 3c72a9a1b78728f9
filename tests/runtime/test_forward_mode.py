"""Dual numbers and batches, which torch makes of single ops, through the autograd bridge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.differentiation import bridged
from tests.parity import leaf, plain

grad = torch.autograd.grad


def test_batched_cotangents_of_what_torch_differentiates_once() -> None:
    x, basis = leaf(3), torch.eye(3, dtype=torch.float64)
    silu = torch.nn.functional.silu
    for function in (bridged(silu, x), silu):
        (rows,) = grad(function(x), x, basis, is_grads_batched=True, create_graph=True)
        (second,) = grad(rows.sum(), x)
        (first,) = grad(silu(x).sum(), x, create_graph=True)
        torch.testing.assert_close(second, grad(first.sum(), x)[0])


@pytest.mark.parametrize("function", [lambda x, y: x.sin() * y, lambda x, y: (x @ y).tanh()])
def test_dual_numbers(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, y, along = plain(3), leaf(3), plain(3)
    compiled = bridged(function, x, y)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, along)
        mine, theirs = (forward_ad.unpack_dual(each(dual, y)) for each in (compiled, function))
        torch.testing.assert_close(mine.primal, theirs.primal)
        torch.testing.assert_close(mine.tangent, theirs.tangent)
        with torch.no_grad():
            alone = forward_ad.unpack_dual(compiled(dual, y))
        torch.testing.assert_close(alone.tangent, theirs.tangent.detach())
        torch.testing.assert_close(grad(mine.tangent.sum(), y), grad(theirs.tangent.sum(), y))


def test_dual_cotangents() -> None:
    x, given, along = leaf(3), plain(3), plain(3)
    out = bridged(torch.nn.functional.silu, x)(x)
    with forward_ad.dual_level():
        (gradient,) = grad(out, x, forward_ad.make_dual(given, along), retain_graph=True)
        tangent = forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(tangent, grad(out, x, along)[0])
