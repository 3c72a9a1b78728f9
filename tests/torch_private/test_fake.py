from __future__ import annotations

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.torch_private import fake
from adjoint.torch_private.fake import (
    FakeTensor,
    FakeTensorMode,
    detached_fake,
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


def _seen(tensor: Tensor) -> tuple[object, ...]:
    """All that can be seen of a fake."""
    return (
        *(type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride()),
        *(tensor.storage_offset(), tensor.requires_grad, tensor._is_view(), tensor._version),
        *(tensor.is_conj(), tensor.is_neg(), storage_key(tensor)),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_fake_is_detached_as_by_the_dispatcher(dynamic: bool) -> None:
    mode = new_fake_mode()
    x = torch.randn(4, 5, dtype=torch.complex64, requires_grad=True)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for real in (x, x.conj(), x.conj().imag, x.t()[1:], torch.zeros(3, 0), images):
        fake = make_fake(mode, real, dynamic, "x")
        with mode, torch.no_grad():
            expected = fake.detach()
        bare = detached_fake(fake)
        assert bare is not None
        assert _seen(bare) == _seen(expected)


def test_only_a_strided_fake_is_detached_without_the_dispatcher() -> None:
    mode = new_fake_mode()
    assert detached_fake(torch.ones(2)) is None
    assert detached_fake(make_fake(mode, torch.eye(2).to_sparse(), False, "x")) is None
    with mode:
        constant = torch.tensor(3)
    assert detached_fake(constant) is None


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


def test_cached_fakes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "MAX_CACHED_FAKES", 20)
    most = 0
    for size in range(3, 40):
        adjoint.capture(lambda x: x.sin().cos() * 2, torch.ones(size))
        most = max(most, len(FakeTensorMode.cache))
    assert 20 < most < 60
