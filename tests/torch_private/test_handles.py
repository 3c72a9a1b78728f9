from __future__ import annotations

import ctypes

import pytest
import torch

from adjoint.torch_private import handles


def test_tensors_are_where_they_are_looked_for() -> None:
    class Kind(torch.Tensor):
        __slots__ = ("more",)

    known = handles.tensor_objects()
    assert known is not None
    assert (known.usual, known.root) == (id(torch.Tensor), id(torch._C.TensorBase))
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    for tensor in (x, x.grad, x.detach(), torch.nn.Parameter(x), x.detach().as_subclass(Kind)):
        at = ctypes.c_uint64.from_address(id(tensor) + known.offset)
        assert at.value == tensor._cdata
        assert issubclass(type(tensor), torch._C.TensorBase)


def test_where_objects_look_otherwise_nothing_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "_offsets", lambda _: {16, 24})
    handles.tensor_objects.cache_clear()
    try:
        assert handles.tensor_objects() is None
    finally:
        handles.tensor_objects.cache_clear()


def test_nodes_are_where_they_are_looked_for() -> None:
    assert handles.node_offset() is not None


@pytest.mark.parametrize("found", [[], [16, 24]])
def test_where_nodes_look_otherwise_nothing_is_assumed(
    found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "_references", lambda *_: set(found))
    handles.node_offset.cache_clear()
    try:
        assert handles.node_offset() is None
    finally:
        handles.node_offset.cache_clear()


def test_addresses_without_memory_are_not_read() -> None:
    with open("/proc/self/mem", "rb", 0) as memory:
        assert handles._words_at(8, memory) == []
        assert handles._words_at(2**64 - 8, memory) == []
