from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.torch_private.storages import Holders, foreach_copy


def saved(tensor: torch.Tensor) -> Any:
    return (torch.ones(8, requires_grad=True) * tensor).grad_fn


class Object:
    """Keeps the tensor as an attribute of something else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.kept = tensor


# Ways to hold on to memory.
HOLDING: list[Callable[[torch.Tensor], Any]] = [
    lambda tensor: tensor,
    lambda tensor: tensor[2:],
    lambda tensor: tensor.view(2, 4).t(),
    lambda tensor: tensor.detach(),
    lambda tensor: tensor.data,
    lambda tensor: tensor.numpy(),
    lambda tensor: tensor[3:].numpy()[::2],
    lambda tensor: tensor.numpy().data,
    lambda tensor: torch.from_numpy(tensor.numpy()),
    lambda tensor: torch.utils.dlpack.from_dlpack(tensor),
    lambda tensor: tensor.__dlpack__(),
    lambda tensor: tensor.untyped_storage(),
    lambda tensor: tensor[2:].untyped_storage(),
    lambda tensor: torch.nn.Parameter(tensor),
    lambda tensor: torch.empty(0).set_(tensor.untyped_storage()),
    lambda tensor: iter(tensor.split(2)),
    saved,
    Object,
]


@pytest.mark.parametrize("hold", HOLDING)
def test_who_holds_memory_is_seen(hold: Callable[[torch.Tensor], Any]) -> None:
    kept = torch.zeros(8)
    holders = Holders(kept)
    assert holders.are_gone()
    held = hold(kept.data)
    assert not holders.are_gone()
    del held
    assert holders.are_gone()


def test_all_must_be_gone() -> None:
    kept = torch.zeros(8)
    holders = Holders(kept)
    one, other = kept.data, kept.data[2:]
    del one
    assert not holders.are_gone()
    del other
    assert holders.are_gone()


def test_tensors_of_several_dtypes_are_copied() -> None:
    dtypes = (torch.float32, torch.int64, torch.float32, torch.bfloat16)
    sources = [torch.full((3,), n, dtype=dtype) for n, dtype in enumerate(dtypes)]
    targets = [torch.zeros(3, dtype=dtype) for dtype in (*dtypes[:3], torch.float32)]
    foreach_copy(zip(targets, sources, strict=True))
    assert [each.tolist() for each in targets] == [[n] * 3 for n in range(4)]
