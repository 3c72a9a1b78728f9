"""Running something twice on the same data: copies of inputs, and the same random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from adjoint.graph.leaves import copy_with_strides
from adjoint.open_types import TorchValue


def copied_inputs(inputs: Sequence[object]) -> list[TorchValue]:
    """The inputs, so that writes to them do not show; tensors have the same strides."""
    return [_copied(each) for each in inputs]


def _copied(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return _like(copy_with_strides(value.detach()), value)


def _like(copy: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A copy that requires grad, and is a leaf, if the original does and is."""
    copy.requires_grad_(value.requires_grad)
    if value.requires_grad and not value.is_leaf:
        with torch.enable_grad():
            return copy.clone()  # A leaf that requires grad may not be written to.
    return copy


@contextlib.contextmanager
def same_draws() -> Iterator[None]:
    """Random numbers that are drawn inside are drawn again afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield
