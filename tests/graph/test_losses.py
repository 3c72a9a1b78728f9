"""The operator of a linear head against torch's functions; in programs: tests/optimize."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from adjoint.graph import losses
from adjoint.graph.losses import MEAN, SUM, linear_cross_entropy


@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, reduction: int, chunk: int) -> None:
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", chunk)
    monkeypatch.setattr(losses, "CHUNK_BYTES", 1)
    x, w, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((8, 3), (3, 5), (5,)))
    target = torch.tensor([0, 4, 2, -1, 1, 3, -1, 2])
    x[0] *= 1e4  # Exponentials of its logits are infinite.
    leaves = [each.requires_grad_() for each in (x, w, bias)]
    how = "mean" if reduction == MEAN else "sum"
    expected = F.cross_entropy(torch.addmm(bias, x, w), target, ignore_index=-1, reduction=how)
    given = [each.detach() for each in leaves]
    every = [True] * 4
    found = linear_cross_entropy(*given, target, None, reduction, -1, torch.float64, every)
    torch.testing.assert_close(found[0], expected.detach())
    for one, other in zip(found[1:], torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_is_asked_for_is_computed() -> None:
    x, w, target = torch.randn(4, 3), torch.randn(3, 5), torch.tensor([0, 1, 2, 3])
    for mask in ([True, False, False, False], [True, True, False, False]):
        found = linear_cross_entropy(x, w, None, target, None, MEAN, -1, torch.float32, mask)
        assert [bool(each.numel()) for each in found] == mask


def test_an_index_out_of_range_is_an_error() -> None:
    x, w, mask = torch.randn(1, 3), torch.randn(3, 5), [True, False, False, False]
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        linear_cross_entropy(x, w, None, torch.tensor([5]), None, MEAN, -1, torch.float32, mask)
