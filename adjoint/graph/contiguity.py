"""Kernels that assume a memory layout of their arguments without checking it.

In eager torch their callers make arguments contiguous first.  In a graph such a kernel is called
directly, and the strides of what reaches it may be known only at run time.
"""

from __future__ import annotations

import torch

from adjoint.open_types import Callee
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _layout_for(x: torch.Tensor) -> torch.memory_format:
    """The memory format in which group norm kernels expect `x` and tensors of its shape."""
    last = _CHANNELS_LAST.get(x.dim())
    if last is None or x.device.type != "cpu" or x.is_contiguous():
        return torch.contiguous_format
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


def _contiguous(value: object) -> object:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _all_contiguous(op: OpOverload) -> Callee:
    def run(*args: object, **kwargs: object) -> object:
        named = {name: _contiguous(value) for name, value in kwargs.items()}
        return op(*map(_contiguous, args), **named)

    return run


def _group_norm(x: torch.Tensor, *args: object) -> object:
    x = x.contiguous(memory_format=_layout_for(x))
    return aten.native_group_norm.default(x, *map(_contiguous, args))


def _group_norm_backward(cotangent: torch.Tensor, x: torch.Tensor, *args: object) -> object:
    layout = _layout_for(x)
    cotangent, x = (t.contiguous(memory_format=layout) for t in (cotangent, x))
    return aten.native_group_norm_backward.default(cotangent, x, *map(_contiguous, args))


def _embedding_bag(weight: torch.Tensor, *args: object) -> object:
    """The weight stays as it is: its strides select the algorithm, which decides what is returned
    besides the sums."""
    return aten._embedding_bag.default(weight, *map(_contiguous, args))


WITH_REQUIRED_LAYOUT: dict[object, Callee] = {
    aten._embedding_bag.default: _embedding_bag,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    **{
        op: _all_contiguous(op)
        for op in (
            aten._weight_norm_interface_backward.default,
            aten.native_layer_norm_backward.default,
            aten._embedding_bag_backward.default,
            aten._embedding_bag_per_sample_weights_backward.default,
            aten._pdist_backward.default,
            aten._pdist_forward.default,
            aten.nll_loss2d_backward.default,
            aten.adaptive_max_pool3d_backward.default,
            aten.fractional_max_pool2d_backward.default,
            aten.fractional_max_pool3d_backward.default,
        )
    },
}
"""By operator: the function to call in its place, which gives the kernel the layout it assumes."""
