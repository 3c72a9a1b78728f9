"""Serializing constants of a graph: tensors, by digest or with their elements."""

from __future__ import annotations

import base64
import math

import torch

from adjoint.forms.form import Malformed, Tree, Unwritable
from adjoint.graph.leaves import bytes_of
from adjoint.store.entries import digest_of

# A larger constant is not written with its elements, and makes its graph unwritable.
MAX_CONSTANT_BYTES = 1 << 20


def content_of(tensor: torch.Tensor) -> list[Tree]:
    """What a constant is: its type, and a digest of its elements."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise Unwritable("a constant that is a tensor subclass, or not strided")
    data = bytes_of(tensor)
    strides = list(tensor.stride())
    return [str(tensor.dtype), list(tensor.shape), strides, str(tensor.device), digest_of(data)]


def elements_of(tensor: torch.Tensor) -> Tree:
    """A constant with its elements."""
    data = bytes_of(tensor) if type(tensor) is torch.Tensor else b""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.requires_grad or tensor.is_quantized:
        raise Unwritable("a constant that is no plain tensor")
    if not tensor.is_contiguous() or len(data) > MAX_CONSTANT_BYTES:
        raise Unwritable("a constant that is large, or not contiguous")
    dtype, elements = str(tensor.dtype).removeprefix("torch."), base64.b64encode(data).decode()
    return ["tensor", dtype, list(tensor.shape), elements, str(tensor.device)]


def constant_of(dtype: Tree, shape: Tree, elements: Tree, device: Tree) -> torch.Tensor:
    """A constant that was written with its elements."""
    kind = getattr(torch, dtype, None)
    data = base64.b64decode(elements, validate=True)
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if not isinstance(kind, torch.dtype) or len(sizes) != len(shape):
        raise Malformed("a constant has a dtype and sizes")
    if math.prod(sizes) * kind.itemsize != len(data):
        raise Malformed("a constant has as many elements as its sizes say")
    flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(sizes).to(torch.device(device))
