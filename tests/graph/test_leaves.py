from __future__ import annotations

import torch

from adjoint.graph.leaves import bytes_of, copy_with_strides, detached, is_floating, requires_grad


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


def test_what_may_have_a_derivative() -> None:
    leaves = (torch.ones(1), torch.ones(1, dtype=torch.complex64), torch.ones(1, dtype=torch.int64))
    assert [is_floating(each) for each in (*leaves, 1.0, None)] == [True, True, False, False, False]


def test_elements_in_row_major_order() -> None:
    x = torch.arange(6, dtype=torch.uint8).view(2, 3).t()
    assert bytes_of(x) == bytes([0, 3, 1, 4, 2, 5])
    assert bytes_of(x[:0]) == b""
    z = torch.tensor([1 + 2j])
    assert bytes_of(z.conj()) == bytes_of(torch.tensor([1 - 2j]))


def test_a_copy_has_the_strides_of_what_it_copies() -> None:
    for each in (torch.rand(3, 4), torch.rand(3, 4).t(), torch.rand(4, 6)[::2, 1:5]):
        copy = copy_with_strides(each)
        assert copy.equal(each)
        assert copy.stride() == each.stride()
        assert copy.data_ptr() != each.data_ptr()
    expanded = torch.rand(3, 1).expand(3, 4)
    assert copy_with_strides(expanded).is_contiguous()
