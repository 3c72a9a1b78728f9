"""Tensors as native code sees them: the `at::Tensor` inside a Python object.

Torch's C interface for compiled programs (`aoti_torch_*`) takes the address of an `at::Tensor`.
Where a Python tensor has it is found here by looking for the address that torch itself reports.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass

import torch

# Where CPython has the type of an object.
_TYPE_OFFSET_BYTES = 8
_WORD_BYTES = 8

# Functions of torch's library that take the address of an `at::Tensor`.
TENSOR_FUNCTIONS = frozenset(
    {
        "aoti_torch_get_data_ptr",
        "aoti_torch_get_dim",
        "aoti_torch_get_strides",
        "_ZN2at6native6is_negERKNS_6TensorE",
    }
)


@dataclass(frozen=True)
class TensorObjects:
    """What native code has to know of Python's tensors."""

    offset: int
    """The bytes from the address of an object to its `at::Tensor`."""
    usual: int
    """The address of the type that most tensors have."""
    root: int
    """The address of the type that all tensors' types derive from."""


@functools.cache
def tensor_objects() -> TensorObjects | None:
    """None if Python objects do not look as expected: native code then is not given tensors."""
    if sys.implementation.name != "cpython":
        return None
    with torch.inference_mode(False), torch.no_grad():
        plain = torch.empty(1, device="cpu")
        samples = [plain, plain.view(1), torch.nn.Parameter(plain), torch.empty(0, device="meta")]
    found = set.intersection(*map(_offsets, samples))
    if len(found) != 1 or not all(map(_has_type_in_place, samples)):
        return None
    return TensorObjects(found.pop(), id(torch.Tensor), id(torch._C.TensorBase))


def _offsets(tensor: torch.Tensor) -> set[int]:
    """Where the object has the address of its `TensorImpl`, which is all of an `at::Tensor`."""
    words = _words(tensor, torch.Tensor.__basicsize__ // _WORD_BYTES)
    return {_WORD_BYTES * place for place, word in enumerate(words) if word == tensor._cdata}


def _has_type_in_place(tensor: torch.Tensor) -> bool:
    place = _TYPE_OFFSET_BYTES // _WORD_BYTES
    return _words(tensor, place + 1)[place] == id(type(tensor))


def _words(tensor: torch.Tensor, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(id(tensor)))
