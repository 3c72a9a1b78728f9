from __future__ import annotations

import torch

from adjoint.graph.leaves import detached, requires_grad


def test_only_a_tensor_requires_grad() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert [requires_grad(each) for each in (leaf, leaf * 2, torch.ones(2), None, 3)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_detached_tensor_is_over_the_same_memory() -> None:
    leaf = torch.ones(2, requires_grad=True)
    bare = detached(leaf)
    assert isinstance(bare, torch.Tensor)
    assert not bare.requires_grad
    assert bare.data_ptr() == leaf.data_ptr()
    assert detached("text") == "text"
