"""Who holds the memory of a tensor."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch


class Holders:
    """Whoever, besides the tensor given, uses its memory: tensors, arrays, the storage itself."""

    __slots__ = ("_address", "_references", "_storage", "_uses")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A storage is one object in Python, however many have it: those count apart.
        self._storage = tensor.untyped_storage()
        self._address = self._storage._cdata
        self._references = sys.getrefcount(self._storage)
        self._uses = _uses(self._address)

    def are_gone(self) -> bool:
        return (
            _uses(self._address) == self._uses
            and sys.getrefcount(self._storage) == self._references
        )


_uses: Callable[[int], int] = torch._C._storage_Use_Count
