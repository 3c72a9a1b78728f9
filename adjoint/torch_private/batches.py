"""Batched tensors of `torch.autograd.grad(..., is_grads_batched=True)` and of `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from adjoint.open_types import TorchValue

# Whether a tensor is a batched cotangent, of a backward under `is_grads_batched=True`.
is_batched_tensor: Callable[[object], bool]
is_batched_tensor = torch._C._functorch.is_legacy_batchedtensor  # type: ignore[assignment]


def is_batched(value: object) -> bool:
    """Whether this is a batched cotangent."""
    return isinstance(value, torch.Tensor) and is_batched_tensor(value)


def vmap_over_batch(
    function: Callable[[list[TorchValue]], Sequence[TorchValue]], inputs: Sequence[TorchValue]
) -> list[object]:
    """`function(inputs)` of batched inputs, by `torch.func.vmap`, which supports more ops."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    plain = [
        # The batch size argument is used only for tensors that are not batched.
        torch._remove_batch_dim(each, level, 1, 0) if is_batched(each) else each
        for each in inputs
    ]
    absent: list[int] = []

    def tensors(*values: object) -> tuple[torch.Tensor, ...]:
        results = function(list(values))
        absent[:] = [index for index, each in enumerate(results) if each is None]
        return tuple(each for each in results if each is not None)

    in_dims = tuple(0 if is_batched(each) else None for each in inputs)
    # Autograd records this outside of its batching level, and batches the backward of it.
    results: list[object] = [
        torch._add_batch_dim(each, 0, level)
        for each in torch.func.vmap(tensors, in_dims=in_dims)(*plain)
    ]
    for index in absent:
        results.insert(index, None)
    return results


def is_at_vmap_level(value: object) -> bool:
    """Whether the innermost level of `torch.func` is a `vmap` that batches this tensor."""
    level = torch._C._functorch.maybe_current_level()
    return (
        level is not None
        and isinstance(value, torch.Tensor)
        and torch._C._functorch.is_batchedtensor(value)
        and torch._C._functorch.maybe_get_level(value) == level
    )


def is_vmapped(value: object) -> bool:
    """Whether some level of `torch.func.vmap` batches this tensor."""
    functorch = torch._C._functorch
    while isinstance(value, torch.Tensor) and functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def run_below_vmap(
    run: Callable[[list[object], tuple[int | None, ...]], Sequence[TorchValue]],
    values: Sequence[TorchValue],
) -> list[TorchValue]:
    """The results of `run(plain, axes)`, called outside of the innermost level of `vmap`.

    `plain` are `values` without that level, and `axes` their batch axes (None: not batched).  The
    batch axis of the results is the first.
    """
    interpreter = retrieve_current_functorch_interpreter()
    functorch = torch._C._functorch
    plain = [functorch.get_unwrapped(each) if is_at_vmap_level(each) else each for each in values]
    axes = tuple(
        functorch.maybe_get_bdim(each) if is_at_vmap_level(each) else None for each in values
    )
    with interpreter.lower():
        results = run(plain, axes)
    return [functorch._add_batch_dim(each, 0, interpreter.level()) for each in results]
