"""Convolutions whose result is stored in given memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adjoint.torch_private.convolutions import convolve_by_cudnn, is_convolved_by_cudnn

aten = torch.ops.aten


def convolution_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """`aten.convolution`, stored in `out`; copied there if the library has memory of its own.

    A CUDA graph returns its results in memory that its caller has allocated.
    """
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    if bias is None and not transposed and is_convolved_by_cudnn(x, weight, out, settings):
        return convolve_by_cudnn(x, weight, out, settings)
    return out.copy_(aten.convolution(x, weight, bias, *settings))
