from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.convolutions import convolve_by_cudnn, is_convolved_by_cudnn

SHAPE = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_a_cpu_has_no_cudnn() -> None:
    x, w = torch.randn(2, 8, 9, 7), torch.randn(8, 8, 3, 3)
    assert not is_convolved_by_cudnn(x, w, torch.empty(2, 8, 9, 7), SHAPE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    def test_cudnn_is_asked_where_strides_are_those_it_writes(self) -> None:
        x, w = torch.randn(2, 8, 9, 7, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
        out = torch.empty_like(x)
        assert is_convolved_by_cudnn(x, w, out, SHAPE)
        other = out.to(memory_format=torch.channels_last)
        assert not is_convolved_by_cudnn(x, w, other, SHAPE)
        assert not is_convolved_by_cudnn(x[:0], w, out[:0], SHAPE)

    def test_it_is_eagers(self) -> None:
        x, w = torch.randn(2, 8, 9, 7, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
        out = torch.empty_like(x)
        convolve_by_cudnn(x, w, out, SHAPE)
        torch.testing.assert_close(out, torch.nn.functional.conv2d(x, w, padding=1))
