from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.torch_private.fake import (
    FakeTensor,
    make_fake,
    new_fake_mode,
    op_without_fake,
    reads_missing_data,
    storage_key,
    storage_keys,
)


@pytest.mark.parametrize("dynamic", [False, True])
def test_fakes_alias_as_the_real_ones(dynamic: bool) -> None:
    mode = new_fake_mode()
    base = torch.randn(4, 3)
    first, second, other = (
        make_fake(mode, t, dynamic, f"x{i}") for i, t in enumerate([base[1:], base, base.clone()])
    )
    assert isinstance(first, FakeTensor)
    assert storage_key(first) == storage_key(second) != storage_key(other)
    assert first._is_view()


def test_sizes_are_symbols_when_asked() -> None:
    fixed = make_fake(new_fake_mode(), torch.randn(4, 1), False, "x")
    general = make_fake(new_fake_mode(), torch.randn(4, 1), True, "x")
    assert all(type(size) is int for size in fixed.shape)
    assert all(isinstance(size, torch.SymInt) for size in general.shape)


def test_a_sparse_tensor_has_no_memory_of_its_own() -> None:
    assert storage_key(torch.eye(2).to_sparse()) is None
    x = torch.ones(3)
    assert storage_key(x) == storage_key(x[1:])


def test_memory_of_several_tensors() -> None:
    x, y = torch.ones(3), torch.ones(3)
    assert storage_keys([x, 3, y, None, x[1:]]) == {storage_key(x), storage_key(y)}
    assert storage_keys([x, torch.eye(2).to_sparse()]) == {storage_key(x)}


@torch.library.custom_op("adjoint_test_fake::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    return x * 1


def test_which_op_has_no_fake() -> None:
    with new_fake_mode() as mode, pytest.raises(RuntimeError) as raised:
        shapeless(make_fake(mode, torch.ones(3), False, "x"))
    assert op_without_fake(raised.value) == "adjoint_test_fake.shapeless"
    assert op_without_fake(RuntimeError("something else")) is None


def test_data_that_is_missing() -> None:
    places = torch.tensor([1, 2])
    with new_fake_mode() as mode, pytest.raises(RuntimeError) as raised:
        torch.tensor_split(torch.ones(3), make_fake(mode, places, False, "places"))
    assert reads_missing_data(raised.value)
    assert not reads_missing_data(RuntimeError("something else"))
