"""The layout of a call's results: inputs, views, and new tensors.

All calls of one kind return results of the same layout, made of their own inputs and memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from adjoint.graph.evaluation import InOwnMemory, InputsWithHistory
from adjoint.open_types import TorchValue
from adjoint.strides import repeats_elements, span_of
from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key

# Copying this much takes no longer than launching a kernel.
MAX_SMALL_BYTES = 1 << 20


class Uncapturable(RuntimeError):
    """A call with a result that a replay could not return."""


@dataclass(frozen=True)
class Window:
    """Shape, strides and offset of a view of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """From the tensor's first element."""

    @staticmethod
    def between(view: torch.Tensor, tensor: torch.Tensor) -> Window:
        if view.dtype != tensor.dtype:
            raise Uncapturable(f"a result is {view.dtype} over memory of {tensor.dtype}")
        offset = int(view.storage_offset()) - int(tensor.storage_offset())
        return Window(tuple(view.shape), view.stride(), offset)

    def on(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True)
class FromInput:
    """A result that is an input, or a view of one."""

    place: int
    window: Window | None


@dataclass(frozen=True)
class FromNew:
    """A result that is a new tensor, or a view of one."""

    number: int
    window: Window | None


@dataclass(frozen=True)
class Constant:
    """A result that is not a tensor."""

    value: object


Result: TypeAlias = FromInput | FromNew | Constant


@dataclass(frozen=True)
class NewTensor:
    """A tensor that the program allocates."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    slot: int | None
    """The slot for which the program allocates it; None: a library call allocates it."""

    @functools.cached_property
    def count_bytes(self) -> int:
        return span_of(self.shape, self.strides) * self.dtype.itemsize

    @property
    def is_small(self) -> bool:
        return self.count_bytes <= MAX_SMALL_BYTES


# Allocates the tensor of a slot: slot, shape, strides and dtype.
AllocateSlot: TypeAlias = Callable[
    [int, tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor
]


# Allocates a tensor: shape, strides and dtype.
Allocate: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


class ResultAllocator:
    """Allocates a program's results, or hands out prepared ones, and remembers which."""

    def __init__(self, memory: Allocate, ready: Mapping[int, torch.Tensor] | None = None) -> None:
        self._memory = memory
        self._ready = dict(ready or {})
        self.given: dict[object, tuple[int, torch.Tensor]] = {}
        """Slots and their tensors, by the identity of the storage."""

    def __call__(
        self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        ready = self._ready.pop(slot, None)
        new = self._memory(shape, strides, dtype) if ready is None else ready
        self.given[storage_key(new)] = (slot, new)
        return new


@dataclass(frozen=True)
class ResultLayout:
    """How each result of a call is made of inputs and new tensors."""

    results: tuple[Result, ...]
    made: tuple[NewTensor, ...]
    spec: trees.TreeSpec

    @functools.cached_property
    def shown(self) -> list[NewTensor]:
        """The new tensors, each with the strides of its result if that is its only view."""
        views: dict[int, list[Window | None]] = {}
        for each in self.results:
            if isinstance(each, FromNew):
                views.setdefault(each.number, []).append(each.window)
        return [_as_seen(each, views.get(number, [])) for number, each in enumerate(self.made)]

    @functools.cached_property
    def all(self) -> list[tuple[int, NewTensor]]:
        """All new tensors, and their numbers."""
        return list(enumerate(self.shown))

    @functools.cached_property
    def large(self) -> list[tuple[int, NewTensor]]:
        return [(number, each) for number, each in self.all if not each.is_small]

    @functools.cached_property
    def small(self) -> list[tuple[int, NewTensor]]:
        return [(number, each) for number, each in self.all if each.is_small]

    @functools.cached_property
    def count_bytes(self) -> int:
        """The bytes of all new tensors."""
        return sum(each.count_bytes for each in self.made)

    def for_program(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """A result, with the shape and strides that the program uses for it."""
        made = self.made[number]
        if self.shown[number] is made:
            return tensor
        return tensor.as_strided(made.shape, made.strides)

    @functools.cached_property
    def is_asked_for(self) -> bool:
        """Whether the program itself allocates all new tensors."""
        return all(each.slot is not None for each in self.made)

    @functools.cached_property
    def _list(self) -> type[list[object]] | type[tuple[object, ...]] | None:
        """The type of the results, if they are one flat list or tuple."""
        whole = [number for _, number in self._whole]
        if len(set(whole)) == len(whole) == len(self.results):
            return InOwnMemory
        kinds: tuple[type[list[object]], type[tuple[object, ...]]] = (list, tuple)
        for kind in kinds:
            if self.spec == trees.flatten(kind([0] * len(self.results)))[1]:
                return kind
        return None

    # Used in every call, so that kinds of results are distinguished only once.

    @functools.cached_property
    def _fixed(self) -> list[object]:
        return [each.value if isinstance(each, Constant) else None for each in self.results]

    @functools.cached_property
    def _whole(self) -> list[tuple[int, int]]:
        """The positions of results that are whole new tensors, and the tensors' numbers."""
        return [
            (place, each.number)
            for place, each in enumerate(self.results)
            if isinstance(each, FromNew)
            and (each.window is None or self.shown[each.number] is not self.made[each.number])
        ]

    @functools.cached_property
    def _others(self) -> list[tuple[int, FromInput | FromNew]]:
        whole = dict(self._whole)
        return [
            (place, each)
            for place, each in enumerate(self.results)
            if not isinstance(each, Constant) and place not in whole
        ]

    def results_from(self, inputs: Sequence[object], made: Mapping[int, torch.Tensor]) -> object:
        leaves = list(self._fixed)
        for place, number in self._whole:
            leaves[place] = made[number]
        for place, each in self._others:
            of = _input(inputs, each.place) if isinstance(each, FromInput) else made[each.number]
            leaves[place] = of if each.window is None else each.window.on(of)
        return self._list(leaves) if self._list else trees.unflatten(leaves, self.spec)


def _input(inputs: Sequence[TorchValue], place: int) -> torch.Tensor:
    given: torch.Tensor = inputs[place]
    return given.detach() if isinstance(inputs, InputsWithHistory) else given


def _as_seen(made: NewTensor, views: Sequence[Window | None]) -> NewTensor:
    """`made` with the strides of its only view, if that shows each element exactly once."""
    view = views[0] if len(views) == 1 else None
    if view is None or view.offset or repeats_elements(view.shape, view.strides):
        return made
    if span_of(view.shape, view.strides) != span_of(made.shape, made.strides):
        return made
    if math.prod(view.shape) != math.prod(made.shape):
        return made
    return NewTensor(view.shape, view.strides, made.dtype, made.slot)


def layout_of_results(
    outputs: object, inputs: Sequence[TorchValue], allocator: ResultAllocator, device: torch.device
) -> tuple[ResultLayout, list[torch.Tensor]]:
    """The layout of `outputs`, and the new tensors among them."""
    given: dict[object, list[int]] = {}
    for place, each in enumerate(inputs):
        if isinstance(each, torch.Tensor):
            given.setdefault(storage_key(each), []).append(place)
    leaves, spec = trees.flatten(list(outputs) if isinstance(outputs, InOwnMemory) else outputs)
    numbers: dict[object, int] = {}
    tensors: list[torch.Tensor] = []
    made: list[NewTensor] = []
    results: list[Result] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            results.append(Constant(leaf))
            continue
        if leaf.device != device or leaf.layout is not torch.strided or _is_lazy(leaf):
            raise Uncapturable(f"a result is {leaf.layout} on {leaf.device}, or lazily conjugated")
        memory: object = storage_key(leaf)
        if memory in given:
            place = _source(leaf, given[memory], inputs)
            results.append(FromInput(place, _window(leaf, inputs[place])))
            continue
        slot, root = allocator.given.get(memory, (None, _root(leaf)))
        if memory in numbers and not _is_inside(leaf, tensors[numbers[memory]]):
            memory, root, slot = (memory, len(tensors)), leaf, None
        if memory not in numbers:
            if not _is_inside(leaf, root) or repeats_elements(root.shape, root.stride()):
                raise Uncapturable("a result lies in memory of which no other result is all")
            numbers[memory] = len(tensors)
            tensors.append(root)
            made.append(NewTensor(tuple(root.shape), root.stride(), root.dtype, slot))
        number = numbers[memory]
        results.append(FromNew(number, _window(leaf, tensors[number])))
    return ResultLayout(tuple(results), tuple(made), spec), tensors


def _window(leaf: torch.Tensor, of: torch.Tensor) -> Window | None:
    return None if leaf is of else Window.between(leaf, of)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj()


def _root(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_inside(view: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether all elements of `view` are between the first and the last one of `tensor`."""
    if not view.numel():
        return True
    first = int(view.storage_offset()) - int(tensor.storage_offset())
    end = first + span_of(view.shape, view.stride())
    return view.dtype != tensor.dtype or (
        first >= 0 and end <= span_of(tensor.shape, tensor.stride())
    )


def _source(leaf: torch.Tensor, places: Sequence[int], inputs: Sequence[TorchValue]) -> int:
    """The input that `leaf` is, or is a view of, among those with the same storage."""
    for place in places:
        if inputs[place] is leaf:
            return place
    for place in places:
        if _root(inputs[place]) is _root(leaf):
            return place
    return places[0]
