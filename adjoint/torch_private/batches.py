"""The batches of `torch.autograd.grad(..., is_grads_batched=True)`: not those of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def is_batched(value: Any) -> bool:
    """A cotangent as a backward for a batch of cotangents sees it."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def over_batch(function: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
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
