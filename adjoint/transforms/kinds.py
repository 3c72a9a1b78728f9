"""Kinds of arguments: what all calls that one program serves have in common."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import torch

from adjoint.open_types import TorchValue
from adjoint.runtime.sharing import sharing
from adjoint.torch_private import trees
from adjoint.torch_private.modes import default_devices
from adjoint.transforms.fingerprint import Fingerprint


class Memory(enum.Flag):
    """What a program assumes about the memory of its tensors."""

    NOTHING = 0
    SHARING = enum.auto()
    """Which tensors share memory, because the program writes to some of them."""
    PLACES = enum.auto()
    """The storage offset of each tensor, because `as_strided` uses absolute offsets."""


# Of each tensor: shape, dtype and so on.
Looks: TypeAlias = list[dict[str, TorchValue]]


@dataclass(frozen=True)
class Call:
    """The arguments of a call, and the tensors that the function closes over."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    given: list[torch.Tensor]
    """The tensors among the arguments."""
    held: tuple[torch.Tensor, ...]
    exact: tuple[object, ...]
    """A key with all sizes and strides: equal keys have the same program."""
    general: tuple[object, ...]
    """A key without sizes, strides, dtypes and devices."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, arguments first."""
        return [*self.given, *self.held]

    @property
    def looks(self) -> Looks:
        """What can be said of the call without keeping its tensors."""
        return [dict(zip(_LOOKED_AT, _LOOKS(each), strict=True)) for each in self.tensors]

    def difference(self, before: Looks, has_symbols: bool) -> str:
        """How this call differs from an earlier one, in words.

        `has_symbols`: a size that changed is a symbol from now on.
        """
        if len(self.looks) != len(before):
            return f"{len(self.looks)} tensors, were {len(before)}"
        for place, (now, then) in enumerate(zip(self.looks, before, strict=True)):
            what = f"tensor {place}" if place < len(self.given) else f"closed-over tensor {place}"
            shape, last = now["shape"], then["shape"]
            for name in _LOOKED_AT[1:]:
                if now[name] != then[name]:
                    return f"{what}: {name} {now[name]}, was {then[name]}"
            if len(shape) != len(last):
                return f"{what}: {len(shape)} dimensions, was {len(last)}"
            for axis in range(len(shape)):
                if shape[axis] != last[axis]:
                    symbol = "; a symbol from now on" if has_symbols and shape[axis] > 1 else ""
                    return (
                        f"{what}: size {shape[axis]} in dimension {axis}, was {last[axis]}{symbol}"
                    )
        return "strides, arguments that are no tensors, or modes of torch are other ones"


def look_at(
    args: tuple[object, ...],
    kwargs: dict[str, object],
    held: Sequence[torch.Tensor],
    memory: Memory,
    function: Hashable,
) -> Call:
    """A call, with the keys by which its program is found.

    `held`: tensors that the function closes over.  `memory`: what programs assume about memory, and
    so has to be part of the keys.  `function`: made part of the keys, if programs are for one
    function object alone.
    """
    leaves, form = trees.leaves_and_structure((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others: tuple[object, ...] = ()
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
    """A key that is equal for calls that differ in sizes alone."""
    tensors = call.tensors
    looks = tuple([(type(each), _layout(each), *_WITHOUT_SHAPE(each)) for each in tensors])
    return (*call.general, looks)


def _layout(tensor: torch.Tensor) -> object:
    """The order of a tensor's strides, whether it is dense, and where strides are 0."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor.dim()
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    step, is_dense = 1, True
    for axis in reversed(order):
        is_dense &= tensor.shape[axis] == 1 or strides[axis] == step
        step *= tensor.shape[axis]
    return (is_dense, *order, *[stride == 0 for stride in strides])


# What tensors of one kind have in common, besides their strides.
_LOOKED_AT = ("shape", "dtype", "device", "requires_grad", "layout")
_LOOKS = attrgetter(*_LOOKED_AT)
_WITHOUT_SHAPE = attrgetter("dtype", "device", "requires_grad", "layout")


def _strides(tensors: Sequence[torch.Tensor]) -> tuple[object, ...]:
    try:
        return tuple(map(torch.Tensor.stride, tensors))
    except RuntimeError:  # Some have no strides.
        return tuple([t.stride() if t.layout is torch.strided else None for t in tensors])


class _Other:
    """An argument that is not a tensor: a key for its value, and the tensors that it holds."""

    def __init__(self, leaf: TorchValue) -> None:
        self.tensors: tuple[torch.Tensor, ...] = ()
        is_fixed = isinstance(leaf, Hashable) and type(leaf).__hash__ is not object.__hash__
        if is_fixed and not isinstance(leaf, (float, complex)):
            self.meaning = (type(leaf), leaf)
            return
        # Objects without an equality of their own, such as modules, may be changed between calls.
        look = Fingerprint(leaf)
        self.meaning = (type(leaf), look.mark)
        self.tensors = look.tensors


def _sharing(tensors: Sequence[torch.Tensor], memory: Memory) -> object:
    """Which arguments are one tensor; if programs depend on it, also shared memory and offsets."""
    ids = list(map(id, tensors))
    same = tuple(map(ids.index, ids)) if len(set(ids)) < len(ids) else None
    if not memory:
        return same
    every = range(len(tensors))
    return same, sharing(tensors, every, every if memory & Memory.PLACES else ())


def _surroundings() -> object:
    """Global state of torch that a captured program depends on."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return (
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        default_devices(),
        tuple((device, torch.get_autocast_dtype(device)) for device in devices),
    )
