"""Who holds the memory of a tensor."""

from __future__ import annotations

import sys

import torch


class Holders:
    """Whoever, besides the tensor given, uses its memory: tensors, arrays, the storage itself."""

    __slots__ = ("_alone", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = tensor.untyped_storage()
        self._alone = self._count()

    def _count(self) -> tuple[int, int]:
        # A storage is one object in Python, however many have it: those count apart.
        return torch._C._storage_Use_Count(self._storage._cdata), sys.getrefcount(self._storage)

    def are_gone(self) -> bool:
        return self._count() == self._alone
