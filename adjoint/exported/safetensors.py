"""Tensors by name, in the format of safetensors files.

length of the header, 8 bytes | header, JSON: dtype, shape and place of each tensor | elements
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping

import torch

from adjoint.graph.leaves import bytes_of
from adjoint.store.headers import BadHeader, read_header

_LENGTH = struct.Struct("<Q")
_ALIGNMENT_BYTES = 8

# A header has a line for each tensor.
MAX_HEADER_BYTES = 100_000_000

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class BadTensors(ValueError):
    """The bytes are no safetensors file, or tensors have no form in one; the message says why."""


def written(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The bytes of tensors; raises `BadTensors`."""
    fields: dict[str, object] = {}
    parts: list[bytes] = []
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
            raise BadTensors(f"{name} is {tensor.dtype}, {tensor.layout}")
        data = bytes_of(tensor)
        fields[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    return b"".join([_LENGTH.pack(len(header)), header, *parts])


def read(data: bytes | memoryview) -> dict[str, torch.Tensor]:
    """The tensors of such bytes, each in memory of its own; raises `BadTensors`."""
    try:
        fields, start = read_header(data, _LENGTH, MAX_HEADER_BYTES)
    except BadHeader as error:
        raise BadTensors(str(error)) from error
    try:
        if not isinstance(fields, dict):
            raise BadTensors("its header is no table")
        fields.pop("__metadata__", None)
        return {name: _tensor(field, memoryview(data)[start:]) for name, field in fields.items()}
    except BadTensors:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadTensors(f"{type(error).__name__}: {error}") from error


def _tensor(field: dict[str, object], data: memoryview) -> torch.Tensor:
    dtype, shape, place = _DTYPES[str(field["dtype"])], field["shape"], field["data_offsets"]
    if not isinstance(shape, list) or not isinstance(place, list) or len(place) != 2:
        raise BadTensors("a tensor has a shape and a place")
    numbers = [*shape, *place]
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in numbers):
        raise BadTensors("sizes and places are natural numbers")
    begin, end = place
    if not begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise BadTensors("a tensor lies outside of the file, or has another size")
    if begin == end:
        return torch.empty(shape, dtype=dtype, device="cpu")
    # In memory of its own, so that kernels find it aligned and nothing else sees it written to.
    raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
    return raw.clone().view(dtype).view(shape)
