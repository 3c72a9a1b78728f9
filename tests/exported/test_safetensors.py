from __future__ import annotations

import json
import struct

import pytest
import torch

from adjoint.exported.safetensors import BadTensors, read, written

TENSORS = {
    "a": torch.arange(6, dtype=torch.float64).view(2, 3),
    "b.c": torch.tensor([True, False]),
    "half": torch.rand(3).half(),
    "brain": torch.rand(2, 2).bfloat16(),
    "none": torch.empty(0, 4, dtype=torch.int64),
    "scalar": torch.tensor(3, dtype=torch.int8),
    "turned": torch.rand(3, 2).t(),
}


def test_tensors_are_read_as_they_were_written() -> None:
    found = read(written(TENSORS))
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_the_format_is_that_of_safetensors() -> None:
    data = written({"x": torch.tensor([1.0, 2.0])})
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    assert header == {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert struct.unpack_from("<2f", data, 8 + length) == (1.0, 2.0)
    assert length % 8 == 0


def test_bytes_of_others_may_have_metadata() -> None:
    header = b'{"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert read(struct.pack("<Q", len(header)) + header + b"\x07")["x"].item() == 7


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "or has another size"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "a tensor lies outside"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "are natural numbers"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, "a tensor lies outside"),
        ({"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}, "X9"),
        ({"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}, "has a shape and a place"),
        ({"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 4]}, "are natural numbers"),
        ({"shape": [1]}, "dtype"),
        (3, "int"),
    ],
)
def test_what_is_no_tensor_is_refused(field: object, why: str) -> None:
    header = json.dumps({"x": field}).encode()
    with pytest.raises(BadTensors, match=why):
        read(struct.pack("<Q", len(header)) + header + b"\0" * 4)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it ends before its header"),
        (b"\xff" * 8, "its header would have 18446744073709551615 bytes"),
        (struct.pack("<Q", 2) + b"[]", "its header is no table"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadTensors, match=why):
        read(data)


def test_a_dtype_without_a_name_is_refused() -> None:
    with pytest.raises(BadTensors, match="complex128"):
        written({"x": torch.zeros(1, dtype=torch.complex128)})
