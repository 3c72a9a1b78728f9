from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.cuda import current_device, raw_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_stream_is_torchs_own() -> None:
    assert raw_stream(current_device()) == torch.cuda.current_stream().cuda_stream
