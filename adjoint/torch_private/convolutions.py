"""Which library convolves, and cuDNN's own operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

# Stride, padding, dilation, whether it is transposed, output padding, groups.
Settings: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int], bool, Sequence[int], int]


def is_convolved_by_cudnn(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    settings: Settings,
) -> bool:
    """Whether eager would call cuDNN for a convolution without bias, with the strides of `out`."""
    if x.device.type != "cuda" or x.dim() not in (4, 5):
        return False
    cudnn = torch._C._ConvBackend.Cudnn  # type: ignore[attr-defined]
    if torch._C._select_conv_backend(x, weight, None, *settings) != cudnn:
        return False
    chosen = torch._C._conv_determine_backend_memory_format(x, weight, cudnn)
    return out.is_contiguous(memory_format=chosen)


def convolve_by_cudnn(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    settings: Settings,
) -> torch.Tensor:
    """The convolution, stored in `out`, in the mode and precision that eager uses."""
    stride, padding, dilation, _, _, groups = settings
    benchmark, deterministic = torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic()
    deterministic = deterministic or torch._C._get_deterministic_algorithms()
    tf32 = torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"
    torch.ops.aten.cudnn_convolution.out(
        x, weight, padding, stride, dilation, groups, benchmark, deterministic, tf32, out=out
    )
    return out
