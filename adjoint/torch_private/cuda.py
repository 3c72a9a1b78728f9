"""CUDA streams, devices and memory pools, without the overhead of torch's public wrappers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import TypeAlias

import torch
from torch._C._dynamo import guards


def raw_stream(device: int) -> int:
    """The driver's handle of torch's current stream."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_device() -> int:
    return torch._C._cuda_getDevice()


# `torch.empty_strided` on the current device, without the overhead of argument parsing.
empty_strided: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
empty_strided = guards._empty_strided_cuda  # type: ignore[attr-defined]


def is_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return torch._C._cuda_isCurrentStreamCapturing()


def numeric_settings() -> Hashable:
    """Global settings that decide which kernels ops use when they are called."""
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
    """Whether matrix products of float32 tensors must be computed in float32."""
    return torch._C._get_fp32_precision_getter("cuda", "matmul") != "tf32"


# The handle of a private memory pool of torch's caching allocator.
MemoryPool: TypeAlias = tuple[int, int]


def new_graph_pool() -> MemoryPool:
    """A private memory pool of torch's caching allocator."""
    handle: MemoryPool = torch.cuda.graph_pool_handle()
    return handle


@contextlib.contextmanager
def allocate_from(pool: MemoryPool, device: int) -> Iterator[None]:
    """This thread's allocations come from `pool`."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device, pool)


class DrawingGraph:
    """A CUDA graph of torch's, whose replays draw new random numbers.

    A replay takes as many numbers from the device's default generator as were drawn while it was
    captured, and advances the generator accordingly.  It has a memory pool of its own: when the
    last graph of a pool is freed, torch allows no further capture into that pool.
    """

    def __init__(self, work: Callable[[], None], device: int) -> None:
        """Capture what `work` launches on the current stream.  Nothing runs."""
        self._graph = torch.cuda.CUDAGraph()
        try:
            self._graph.capture_begin(capture_error_mode="thread_local")
            work()
            self._graph.capture_end()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self._graph.capture_end()
            # After a failed capture the generator's state is still marked as capturing.
            generator = torch.cuda.default_generators[device]
            generator.graphsafe_set_state(generator.clone_state())
            raise

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()

    def free(self) -> None:
        """Give up the graph and its memory."""
        self._graph.reset()
