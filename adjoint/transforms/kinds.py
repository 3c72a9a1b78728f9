"""Kinds of arguments: what is the same of all calls that one program is for."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from adjoint.runtime.entry import sharing
from adjoint.torch_private import trees
from adjoint.torch_private.modes import default_devices
from adjoint.transforms.fingerprint import Fingerprint


class Memory(enum.Flag):
    """What a program takes for granted about the memory of its tensors."""

    NOTHING = 0
    SHARING = enum.auto()
    """Which of them share it: some are written to."""
    PLACES = enum.auto()
    """Where in it each of them is: `as_strided` counts from where it begins."""


@dataclass(frozen=True)
class Call:
    """The arguments of a call, and the tensors that the function holds."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[torch.Tensor]
    """The tensors among the arguments."""
    held: tuple[torch.Tensor, ...]
    exact: tuple[Any, ...]
    """Equal for calls that one program is for, whatever it assumes of sizes."""
    general: tuple[Any, ...]
    """Equal for calls that differ in sizes and strides alone."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, arguments first."""
        return [*self.given, *self.held]


def look_at(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    held: Sequence[torch.Tensor],
    memory: Memory,
    function: Hashable,
) -> Call:
    """A call as its program sees it.

    `memory`: what it takes for granted; `function`: what it is for alone, if not None.
    """
    leaves, form = trees.leaves_and_structure((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others: tuple[Any, ...] = ()
    if len(given) < len(leaves):
        looks = [_Other(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        places = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
        others = (places, *[look.meaning for look in looks])
        held = [*held, *[each for look in looks for each in look.tensors]]
    tensors = [*given, *held]
    kinds = tuple(map(_LOOKS, tensors))
    common = (function, form, others, _surroundings(), _sharing(tensors, memory))
    exact = (*common, tuple(map(type, tensors)), kinds, _strides(tensors))
    return Call(args, kwargs, given, tuple(held), exact, common)


def without_sizes(call: Call) -> Hashable:
    """What is the same of calls with other sizes."""
    tensors = call.tensors
    looks = tuple([(type(each), _layout(each), *_WITHOUT_SHAPE(each)) for each in tensors])
    return (*call.general, looks)


def _layout(tensor: torch.Tensor) -> Any:
    """How a tensor lies in memory, whatever its sizes are."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor.dim()
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    step, is_dense = 1, True
    for axis in reversed(order):
        is_dense &= tensor.shape[axis] == 1 or strides[axis] == step
        step *= tensor.shape[axis]
    return (is_dense, *order, *[stride == 0 for stride in strides])


# What is the same of tensors that are of one kind, besides their strides.
_LOOKS = attrgetter("shape", "dtype", "device", "requires_grad", "layout")
_WITHOUT_SHAPE = attrgetter("dtype", "device", "requires_grad", "layout")


def _strides(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    try:
        return tuple(map(torch.Tensor.stride, tensors))
    except RuntimeError:  # Some have no strides.
        return tuple([t.stride() if t.layout is torch.strided else None for t in tensors])


class _Other:
    """An argument that is no tensor: what makes it another one, and the tensors that it holds."""

    def __init__(self, leaf: Any) -> None:
        self.tensors: tuple[torch.Tensor, ...] = ()
        is_fixed = isinstance(leaf, Hashable) and type(leaf).__hash__ is not object.__hash__
        if is_fixed and not isinstance(leaf, (float, complex)):
            self.meaning = (type(leaf), leaf)
            return
        # What is equal to nothing else may be changed, as modules are.
        look = Fingerprint(leaf)
        self.meaning = (type(leaf), look.mark)
        self.tensors = look.tensors


def _sharing(tensors: Sequence[torch.Tensor], memory: Memory) -> Any:
    """Which of the tensors are one; where that matters, also which share memory, and its places."""
    ids = list(map(id, tensors))
    same = tuple(map(ids.index, ids)) if len(set(ids)) < len(ids) else None
    if not memory:
        return same
    every = range(len(tensors))
    return same, sharing(tensors, every, every if memory & Memory.PLACES else ())


def _surroundings() -> Any:
    """What the meaning of a program depends on besides its arguments."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        default_devices(),
        tuple((device, torch.get_autocast_dtype(device)) for device in devices),
    )
