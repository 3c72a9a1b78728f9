"""Which library convolves, and cuDNN's own operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def is_convolved_by_cudnn(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> bool:
    """Whether eager would call cuDNN for a convolution without bias, with the strides of `out`."""
    if x.device.type != "cuda" or x.dim() not in (4, 5):
        return False
    given = (x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    cudnn = torch._C._ConvBackend.Cudnn  # type: ignore[attr-defined]
    if torch._C._select_conv_backend(*given) != cudnn:
        return False
    chosen = torch._C._conv_determine_backend_memory_format(x, weight, cudnn)
    return out.is_contiguous(memory_format=chosen)


def convolve_by_cudnn(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    out: torch.Tensor,
) -> torch.Tensor:
    """The convolution, with the settings that eager uses."""
    benchmark, deterministic = torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic()
    deterministic = deterministic or torch._C._get_deterministic_algorithms()
    tf32 = torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"
    settings = (benchmark, deterministic, tf32)
    torch.ops.aten.cudnn_convolution.out(
        x, weight, padding, stride, dilation, groups, *settings, out=out
    )
    return out
