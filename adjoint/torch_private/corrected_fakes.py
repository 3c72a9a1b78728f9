"""Corrections of fake kernels whose dtypes or strides differ from the real ones.

All ops on fakes are called by `fake_call`.  `CORRECTED` is the table of known errors in torch; what
runs have observed besides is in `learned_fakes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_map

from adjoint.dtypes import HALVES
from adjoint.open_types import Callee, OpKeywords
from adjoint.torch_private.learned_fakes import as_learned
from adjoint.torch_private.logs import unlogged

aten = torch.ops.aten

NEAREST = (
    aten.upsample_nearest1d.default,
    aten._upsample_nearest_exact1d.default,
    aten.upsample_nearest2d.default,
    aten._upsample_nearest_exact2d.default,
    aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact3d.default,
)

POINTWISE = (
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.logaddexp.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
)


def fake_call(
    op: Callee,
    args: Sequence[object],
    kwargs: OpKeywords,
    meaning: Callee | None = None,
) -> object:
    """`op(*args, **kwargs)` of fakes, with the dtypes and strides that the real op returns.

    `meaning`: a function to call in place of `op`, whose corrections apply all the same.
    """
    correct, run = CORRECTED.get(op), meaning or op
    with unlogged:
        result = run(*args, **kwargs) if correct is None else correct(run, *args, **kwargs)
    return as_learned(op, args, kwargs, result)


def _statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, result: Sequence[Tensor]
) -> Sequence[Tensor]:
    """For half-precision inputs and float32 parameters, CPU kernels return float32 statistics.

    Torch's fakes say half precision (2.11 to 2.13).
    """
    wide = next((p.dtype for p in (weight, bias) if p is not None and p.dtype not in HALVES), None)
    if x.device.type != "cpu" or x.dtype not in HALVES or wide is None:
        return result
    return (result[0], *(each.to(wide) for each in result[1:3]), *result[3:])


def _layer_norm(
    op: Callee,
    x: Tensor,
    shape: object,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> object:
    return _statistics(x, weight, bias, op(x, shape, weight, bias, eps))


def _group_norm(
    op: Callee, x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: object
) -> object:
    return _statistics(x, weight, bias, op(x, weight, bias, *rest))


def _batch_norm(
    op: Callable[..., Sequence[Tensor]],
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *rest: object,
) -> object:
    y, *statistics = _statistics(x, weight, bias, op(x, weight, bias, *rest))
    return (_in_suggested_format(x, y), *statistics)


def _batch_norm_functional(
    op: Callee,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    *rest: object,
) -> object:
    """New running statistics have the dtypes of the old ones."""
    result = op(x, weight, bias, mean, variance, *rest)
    y, *statistics, new_mean, new_variance = _statistics(x, weight, bias, result)
    y = _in_suggested_format(x, y)
    return (y, *statistics, new_mean.to(mean.dtype), new_variance.to(variance.dtype))


def _in_suggested_format(x: Tensor, result: Tensor) -> Tensor:
    """On a CPU `result` is channels-last if the argument `x` is, and contiguous otherwise.

    The fakes keep other orders of dimensions, or do not keep this one.
    """
    numbers = (*x.shape, *x.stride(), *result.shape)
    if x.device.type != "cpu" or not all(isinstance(each, int) for each in numbers):
        return result  # A comparison of symbolic strides would add a guard.
    return result.new_empty(result.shape).to(memory_format=suggest_memory_format(x))


def _formatted(op: Callable[..., Tensor], x: Tensor, *args: object) -> object:
    return _in_suggested_format(x, op(x, *args))


def _roll(
    op: Callable[..., Tensor],
    x: Tensor,
    shifts: Sequence[int | torch.SymInt],
    dims: Sequence[int] = (),
) -> object:
    """Two parts, joined: contiguous if one of them is empty."""
    result = op(x, shifts, dims)
    sizes = [x.shape[dim] for dim in dims]
    if not (sizes and all(isinstance(each, int) for each in (*sizes, *shifts)) and all(sizes)):
        return result
    if any(shift % size == 0 for shift, size in zip(shifts, sizes, strict=True)):
        return result
    return _in_suggested_format(x, result)


def _pointwise(op: Callable[..., Tensor], *args: object, **kwargs: object) -> object:
    """Torch orders the dimensions of every pointwise result alike; some fakes do so otherwise."""
    result = op(*args, **kwargs)
    tensors = [each for each in args if isinstance(each, Tensor)]
    if any(each.layout is not torch.strided for each in tensors):
        return result
    like = aten.add.Tensor(tensors[0], tensors[-1])
    return result.new_empty_strided(result.shape, like.stride())


def _group_norm_backward(op: Callee, cotangent: Tensor, x: Tensor, *args: object) -> object:
    """The gradient has the input's dtype; the fake fails for arguments that are not contiguous."""
    of_x, *others = op(cotangent.contiguous(), x.contiguous(), *args)
    return (None if of_x is None else of_x.to(x.dtype), *others)


def _gradient_of_loss(
    op: object, cotangent: object, x: Tensor, *args: object, **kwargs: object
) -> object:
    """The input's dtype, contiguous.

    The fakes promote with the target's dtype, and divide by a number of elements that may be zero.
    """
    return x.new_empty(x.shape)


def _soft_margin_backward(op: Callee, cotangent: Tensor, x: Tensor, *args: object) -> object:
    """In the dtype of the input."""
    return op(cotangent, x, *args).to(x.dtype)


def _like_prediction(op: Callee, x: Tensor, *args: object, **kwargs: object) -> object:
    """In the dtype of the prediction."""
    return op(x, *args, **kwargs).to(x.dtype)


def _addr(op: Callee, bias: Tensor, left: Tensor, right: Tensor, **kwargs: object) -> object:
    """In the promoted dtype of all three, also if the first has no dimensions."""
    types = (bias.dtype, left.dtype, right.dtype)
    widest = torch.promote_types(torch.promote_types(types[0], types[1]), types[2])
    return op(bias, left, right, **kwargs).to(widest)


def _normal(op: Callee, mean: Tensor, std: Tensor, **kwargs: object) -> object:
    """In the dtype of the mean."""
    return op(mean, std, **kwargs).to(mean.dtype)


def _efficient_attention(op: Callee, *args: object, **kwargs: object) -> object:
    """The state of the random generator is on the CPU, unless a CUDA graph is being captured."""
    y, log_sumexp, seed, offset, *lengths = op(*args, **kwargs)
    return (y, log_sumexp, seed.cpu(), offset.cpu(), *lengths)


def _softmax_backward(op: Callee, cotangent: Tensor, *args: object) -> object:
    """In the dtype of the cotangent, except on a GPU."""
    result = op(cotangent, *args)
    return result.to(cotangent.dtype) if cotangent.device.type == "cpu" else result


def _embedding_bag(op: Callee, weight: Tensor, *args: object, **kwargs: object) -> object:
    """bfloat16 takes the fast path of float16, which returns no map from indices to bags."""
    if weight.dtype is not torch.bfloat16:
        return op(weight, *args, **kwargs)

    def other(leaf: object, have: torch.dtype, want: torch.dtype) -> object:
        return leaf.to(want) if isinstance(leaf, Tensor) and leaf.dtype is have else leaf

    there = tree_map(
        lambda leaf: other(leaf, torch.bfloat16, torch.float16), ((weight, *args), kwargs)
    )
    return tree_map(
        lambda leaf: other(leaf, torch.float16, torch.bfloat16), op(*there[0], **there[1])
    )


def _contiguous(op: Callee, *args: object, **kwargs: object) -> object:
    """Results are contiguous, whatever the strides of the argument."""
    return tree_map(
        lambda leaf: leaf.new_empty(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf,
        op(*args, **kwargs),
    )


def _interpolated(op: Callee, x: Tensor, *args: object, **kwargs: object) -> object:
    """The fakes fail for an empty batch."""
    batch: object = x.shape[0]
    if not (isinstance(batch, int) and batch == 0):
        return op(x, *args, **kwargs)
    one = op(x.new_empty((1, *x.shape[1:])), *args, **kwargs)
    return one.new_empty((0, *one.shape[1:]))


# By op: a function of what the op calls, and of the arguments.
CORRECTED: dict[object, Callable[..., object]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.mse_loss_backward.default: _gradient_of_loss,
    aten.smooth_l1_loss_backward.default: _gradient_of_loss,
    aten.huber_loss_backward.default: _gradient_of_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.huber_loss.default: _like_prediction,
    aten.soft_margin_loss.default: _like_prediction,
    aten.addr.default: _addr,
    aten.normal.Tensor_Tensor: _normal,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._embedding_bag.default: _embedding_bag,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten._efficient_attention_forward.default: _efficient_attention,
    aten.log_sigmoid_forward.default: _contiguous,
    aten.roll.default: _roll,
    **dict.fromkeys(NEAREST, _interpolated),
    aten.replication_pad3d.default: _formatted,
    **dict.fromkeys(POINTWISE, _pointwise),
}
