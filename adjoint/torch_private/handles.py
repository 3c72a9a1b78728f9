"""Tensors and autograd nodes as native code sees them: what is inside Python objects.

Torch's C interface for compiled programs (`aoti_torch_*`) takes the address of an `at::Tensor`.
Where a Python tensor has it is found here by looking for the address that torch itself reports.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from dataclasses import dataclass
from typing import BinaryIO

import torch

from adjoint.torch_private.autograd import applying

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


# A method of autograd's nodes: whether the current backward pass uses the gradient of an input.
NODE_FUNCTION = "_ZNK5torch8autograd4Node26task_should_compute_outputEm"

# A node of a `torch.autograd.Function` refers to its Python object within this many bytes.
_NODE_BYTES = 512


@dataclass(frozen=True)
class TensorObjects:
    """What native code has to know of Python's tensors."""

    offset: int
    """The bytes from the address of a Python tensor to its `at::Tensor`."""
    usual: int
    """The address of the type that most tensors have."""
    root: int
    """The address of the type that all tensors' types derive from."""


@functools.cache
def tensor_objects() -> TensorObjects | None:
    """What native code has to know; None if objects have another layout.

    Native code is then given addresses of memory in place of tensors.
    """
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
    """Offsets in the object of the address of its `TensorImpl`, the only member of `at::Tensor`."""
    words = _words(tensor, torch.Tensor.__basicsize__ // _WORD_BYTES)
    return {_WORD_BYTES * place for place, word in enumerate(words) if word == tensor._cdata}


def _has_type_in_place(tensor: torch.Tensor) -> bool:
    place = _TYPE_OFFSET_BYTES // _WORD_BYTES
    return _words(tensor, place + 1)[place] == id(type(tensor))


def _words(tensor: torch.Tensor, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(id(tensor)))


@functools.cache
def node_offset() -> int | None:
    """The offset, in the Python object of a `torch.autograd.Function`'s node, of its C++ address.

    It is found because the C++ node points back to the Python object; None if it is not found.
    """
    if sys.implementation.name != "cpython" or not sys.platform.startswith("linux"):
        return None
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros(1, device="cpu", requires_grad=True)
        results = [applying(_Sample)(leaf) for _ in range(2)]
    try:
        # Reading this file fails where there is no memory, instead of ending the process.
        with open("/proc/self/mem", "rb", 0) as memory:
            found = set.intersection(*(_references(each.grad_fn, memory) for each in results))
    except OSError:
        return None
    return found.pop() if len(found) == 1 else None


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def _references(node: object, memory: BinaryIO) -> set[int]:
    """Offsets in the object of a node of pointers to memory that points back to the object."""
    count = type(node).__basicsize__ // _WORD_BYTES
    words = list((ctypes.c_uint64 * count).from_address(id(node)))
    return {
        _WORD_BYTES * place
        for place, word in enumerate(words)
        if word % _WORD_BYTES == 0 and id(node) in _words_at(word, memory)
    }


def _words_at(address: int, memory: BinaryIO) -> list[int]:
    """The words at an address; none if there is no memory."""
    try:
        memory.seek(address)
        found = memory.read(_NODE_BYTES)
    except (OSError, ValueError, OverflowError):
        return []
    return list(struct.unpack_from(f"{len(found) // _WORD_BYTES}Q", found))
