"""The batches of `torch.autograd.grad(..., is_grads_batched=True)`, and those of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter


def is_batched(value: Any) -> bool:
    """A cotangent as a backward for a batch of cotangents sees it."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def vmap_over_batch(
    function: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any]
) -> list[Any]:
    """`function(inputs)` for a batch, by `torch.func.vmap`, which knows all ops."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    given = [
        # The size of the batch matters only for tensors that are not part of it.
        torch._remove_batch_dim(each, level, 1, 0) if is_batched(each) else each
        for each in inputs
    ]
    absent: list[int] = []

    def tensors(*values: Any) -> tuple[torch.Tensor, ...]:
        results = function(list(values))
        absent[:] = [place for place, each in enumerate(results) if each is None]
        return tuple(each for each in results if each is not None)

    places = tuple(0 if is_batched(each) else None for each in inputs)
    # Autograd batches the backward of what runs here, and records it above that.
    results: list[Any] = [
        torch._add_batch_dim(each, 0, level)
        for each in torch.func.vmap(tensors, in_dims=places)(*given)
    ]
    for place in absent:
        results.insert(place, None)
    return results


def is_at_vmap_level(value: Any) -> bool:
    """A tensor of the level of `torch.func.vmap` under way, the innermost level there is."""
    level = torch._C._functorch.maybe_current_level()
    return (
        level is not None
        and isinstance(value, torch.Tensor)
        and torch._C._functorch.is_batchedtensor(value)
        and torch._C._functorch.maybe_get_level(value) == level
    )


def is_vmapped(value: Any) -> bool:
    """A tensor of some level of `torch.func.vmap`: another one for each element of a batch."""
    inside = torch._C._functorch
    while isinstance(value, torch.Tensor) and inside.is_functorch_wrapped_tensor(value):
        if inside.is_batchedtensor(value):
            return True
        value = inside.get_unwrapped(value)
    return False


def run_below_vmap(
    run: Callable[[list[Any], tuple[int | None, ...]], Sequence[Any]], values: Sequence[Any]
) -> list[Any]:
    """The results of `run`, for tensors without the level of `vmap` under way and outside of it.

    It is given `values`, and which axis of each is the batch; that of its results is the first.
    """
    interpreter: Any = retrieve_current_functorch_interpreter()
    inside = torch._C._functorch
    plain = [inside.get_unwrapped(each) if is_at_vmap_level(each) else each for each in values]
    axes = tuple(inside.maybe_get_bdim(each) if is_at_vmap_level(each) else None for each in values)
    with interpreter.lower():
        results = run(plain, axes)
    return [inside._add_batch_dim(each, 0, interpreter.level()) for each in results]
