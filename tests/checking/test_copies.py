from __future__ import annotations

import torch

from adjoint.checking.copies import copied_inputs, same_draws


def test_copies_have_the_strides_of_their_originals_and_memory_of_their_own() -> None:
    x = torch.rand(3, 4).t().detach().requires_grad_()
    expanded = torch.rand(1, 3).expand(2, 3)
    given = [x, expanded, 3, torch.rand(2)]
    copies = copied_inputs(given)
    assert copies[0].stride() == x.stride()
    assert copies[0].requires_grad
    assert copies[0].is_leaf
    assert torch.equal(copies[1], expanded)
    assert copies[2] == 3
    (computed,) = copied_inputs([x * 2])
    computed.mul_(2)  # As what it is a copy of: a leaf could not be written to.
    assert computed.requires_grad
    copies[3].zero_()
    assert not torch.equal(copies[3], given[3])  # type: ignore[arg-type]


def test_random_numbers_are_drawn_again() -> None:
    with same_draws():
        one = torch.rand(3)
    assert torch.equal(one, torch.rand(3))
