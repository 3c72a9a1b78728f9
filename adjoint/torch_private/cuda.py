"""Streams and devices, asked of torch without its wrappers: once for each call of a program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch._C._dynamo import guards


def raw_stream(device: int) -> int:
    """The stream that torch launches on at the moment, as the driver knows it."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_device() -> int:
    return torch._C._cuda_getDevice()


# Memory on the current device, for a shape, strides and a type: `torch.empty_strided` in half its
# time.
empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = guards._empty_strided_cuda  # type: ignore[attr-defined]


def is_capturing() -> bool:
    """What is launched on the current stream is written down instead, for whoever began that."""
    return torch._C._cuda_isCurrentStreamCapturing()


def numeric_settings() -> Hashable:
    """What torch has been told about how to compute: operators obey it when they are called."""
    return (
        torch._C._get_deterministic_algorithms(),
        torch._C._get_fp32_precision_getter("cuda", "matmul"),
        torch._C._get_fp32_precision_getter("cuda", "conv"),
        torch._C._get_fp32_precision_getter("cuda", "rnn"),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_cudnn_deterministic(),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch.is_inference_mode_enabled(),
    )


def matmuls_avoid_tf32() -> bool:
    """Products of floats are to be no less than that."""
    return torch._C._get_fp32_precision_getter("cuda", "matmul") != "tf32"


def foreach_copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies the second of each pair to the first, by few launches."""
    to, taken = zip(*pairs, strict=True)
    torch._foreach_copy_(to, taken)


def new_graph_pool() -> Any:
    """Memory apart from all other; what is free in it, it keeps."""
    return torch.cuda.graph_pool_handle()


@contextlib.contextmanager
def allocate_from(pool: Any, device: int) -> Iterator[None]:
    """This thread takes memory from `pool`."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device, pool)
