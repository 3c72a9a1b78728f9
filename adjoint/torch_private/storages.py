"""Storages: how many refer to one, new ones without the overhead of argument parsing, copies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import torch
from torch._C._dynamo import guards


class Holders:
    """References to a tensor's storage that did not exist when this was made."""

    __slots__ = ("_address", "_memory", "_references", "_storage", "_uses")

    def __init__(self, tensor: torch.Tensor) -> None:
        # All Python references share one storage object, which counts them itself.
        self._storage = tensor.untyped_storage()
        self._address = self._storage._cdata
        self._references = sys.getrefcount(self._storage)
        self._uses = _uses(self._address)
        self._memory = (self._storage.data_ptr(), self._storage.nbytes())

    def are_gone(self) -> bool:
        """Whether all references made since construction are gone, and the memory is the same.

        Resizing a storage, or sharing it with other processes, gives it other memory.
        """
        return (
            _uses(self._address) == self._uses
            and sys.getrefcount(self._storage) == self._references
            and (self._storage.data_ptr(), self._storage.nbytes()) == self._memory
        )


def foreach_copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair to the first, on a GPU in few launches.

    Of tensors of several dtypes torch would copy one at a time.
    """
    by_dtypes: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in pairs:
        targets, sources = by_dtypes.setdefault((target.dtype, source.dtype), ([], []))
        targets.append(target)
        sources.append(source)
    for targets, sources in by_dtypes.values():
        torch._foreach_copy_(targets, sources)


_uses: Callable[[int], int] = torch._C._storage_Use_Count

# `torch.empty_strided` on the CPU, whatever the default device is.
empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = guards._empty_strided_cpu  # type: ignore[attr-defined]
