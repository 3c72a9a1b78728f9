"""In which pattern the inputs of a call share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from adjoint.open_types import TorchValue
from adjoint.torch_private.fake import storage_key

Sharing: TypeAlias = tuple[object, ...]


def sharing(
    inputs: Sequence[TorchValue], written: Sequence[int], placed: Sequence[int] = ()
) -> Sharing:
    """The aliasing pattern: which inputs share a storage that is written to, and their layouts.

    Also the storages of the inputs at `placed`, of which the program reads more than the inputs
    cover.
    """
    memories = {storage_key(inputs[index]) for index in (*written, *placed)} - {None}
    groups: dict[int | None, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            memory = storage_key(value)
            if memory in memories:
                groups.setdefault(memory, []).append(index)
    shared = [group for group in groups.values() if len(group) > 1]
    places = tuple(
        (index, id(inputs[index]) == id(inputs[group[0]]), *_place(inputs[index]))
        for group in shared
        for index in group
    )
    alone = [inputs[index] for index in placed]
    return (*places, *((x.storage_offset(), x.untyped_storage().nbytes()) for x in alone))


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    base = tensor._base if tensor._is_view() else None
    place = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return place if base is None else (*place, *_place(base))
