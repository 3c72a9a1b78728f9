"""Who holds the memory of a tensor."""

from __future__ import annotations

import torch


class Holders:
    """Tensors, besides the one given, that use its memory."""

    __slots__ = ("_alone", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = tensor.untyped_storage()
        self._alone = torch._C._storage_Use_Count(self._storage._cdata)

    def are_gone(self) -> bool:
        return bool(torch._C._storage_Use_Count(self._storage._cdata) == self._alone)
