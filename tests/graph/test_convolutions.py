from __future__ import annotations

import pytest
import torch

from adjoint.graph.convolutions import convolution_into

aten = torch.ops.aten

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("transposed", "groups"), [(False, 1), (False, 4), (True, 1)])
def test_the_result_is_in_the_memory_given(
    device: str,
    memory_format: torch.memory_format,
    dtype: torch.dtype,
    has_bias: bool,
    transposed: bool,
    groups: int,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 9, 7, device=device, dtype=dtype).to(memory_format=memory_format)
    w = torch.randn(8, 8 // groups, 3, 3, device=device, dtype=dtype)
    w = w.to(memory_format=memory_format)
    bias = torch.randn(8, device=device, dtype=dtype) if has_bias else None
    given = (x, w, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    expected = aten.convolution(*given)
    for strides in (expected.stride(), torch.empty(expected.shape).stride()):
        out = torch.empty_strided(expected.shape, strides, dtype=dtype, device=device)
        found = convolution_into(*given, out=out)
        assert found.data_ptr() == out.data_ptr()
        assert found.stride() == strides
        torch.testing.assert_close(found, expected)
