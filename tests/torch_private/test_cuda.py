from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.cuda import (
    allocate_from,
    current_device,
    empty_strided,
    is_capturing,
    new_graph_pool,
    numeric_settings,
    raw_stream,
)
from adjoint.torch_private.storages import foreach_copy

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cudnn, "benchmark", True),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "enabled", False),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    ],
)
def test_what_torch_is_told_is_seen(owner: object, name: str, value: object) -> None:
    before, kept = numeric_settings(), getattr(owner, name)
    # Torch's own test tools, which other tests import, forbid it outside of such a block.
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)
        try:
            assert numeric_settings() != before
        finally:
            setattr(owner, name, kept)
    assert numeric_settings() == before


def test_modes_are_seen() -> None:
    before = numeric_settings()
    with torch.inference_mode():
        assert numeric_settings() != before
    torch.use_deterministic_algorithms(True)
    try:
        assert numeric_settings() != before
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@GPU
def test_the_stream_is_torchs_own() -> None:
    assert raw_stream(current_device()) == torch.cuda.current_stream().cuda_stream


@pytest.mark.gpu
@GPU
def test_a_recording_under_way_is_seen() -> None:
    x = torch.zeros(3, device="cuda")
    assert not is_capturing()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert is_capturing()
        x.add_(1)
    assert not is_capturing()


@pytest.mark.gpu
@GPU
def test_memory_of_a_pool_is_given_to_nobody_else() -> None:
    pool = new_graph_pool()
    with allocate_from(pool, current_device()):
        address = torch.empty(1 << 24, device="cuda").data_ptr()
    held = [torch.empty(1 << 24, device="cuda") for _ in range(3)]
    assert address not in [each.data_ptr() for each in held]
    with allocate_from(pool, current_device()):
        assert torch.empty(1 << 24, device="cuda").data_ptr() == address


def test_copies_of_several_at_once() -> None:
    taken = [torch.rand(3), torch.arange(4), torch.rand(0)]
    to = [torch.empty_like(each) for each in taken]
    foreach_copy(zip(to, taken, strict=True))
    torch.testing.assert_close(to, taken)


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("inference", [False, True])
def test_memory_is_torchs_on_the_current_device(inference: bool) -> None:
    with torch.inference_mode(inference):
        ours = empty_strided((2, 3), (1, 4), torch.float64)
        torchs = torch.empty_strided((2, 3), (1, 4), dtype=torch.float64, device="cuda")
    for one, other in [(ours, torchs)]:
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert (one.device, one.is_inference()) == (other.device, other.is_inference())
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
