"""How capture calls `scaled_dot_product_attention`, so that torch chooses a fused kernel.

Torch chooses when it is called, by the layouts of its arguments.  Where nothing fits it writes
attention out, in float32 for half precision: slower, and with all weights in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from adjoint.failing import call_user_code

# The position of the mask among the arguments, and its name.
_MASK = 3
_NAME = "attn_mask"


def attend(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Call `scaled_dot_product_attention` with a mask in a layout that fused kernels accept."""
    given, named = args[_MASK : _MASK + 1], kwargs.get(_NAME)
    if given and isinstance(given[0], torch.Tensor):
        args = (*args[:_MASK], with_dense_rows(given[0]), *args[_MASK + 1 :])
    if isinstance(named, torch.Tensor):
        kwargs = {**kwargs, _NAME: with_dense_rows(named)}
    return call_user_code(function, *args, **kwargs)


def with_dense_rows(mask: torch.Tensor) -> torch.Tensor:
    """The mask with a last axis that is dense in memory; other axes that are repeated stay so."""
    if not mask.dim() or _is(mask.stride(-1), 1) or _is(mask.shape[-1], 1):
        return mask
    strides = mask.stride()[:-1]
    once = tuple(slice(0, 1) if _is(stride, 0) else slice(None) for stride in strides)
    return mask[once].contiguous().expand(mask.shape)


def _is(number: int | torch.SymInt, value: int) -> bool:
    """Whether a number is `value` whatever the symbolic sizes are."""
    return isinstance(number, int) and number == value
