"""What a program's call returns, taken apart: inputs, views, and tensors that it makes.

Another call of the same sort returns the same, of its own inputs and of other memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from adjoint.graph.evaluation import InputsWithHistory
from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key

# Up to so many bytes are copied: that takes less than to launch a kernel.
SMALL = 1 << 20


class Uncapturable(RuntimeError):
    """A result that could not be handed out again."""


@dataclass(frozen=True)
class Window:
    """How a view lies in the memory of a tensor."""

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
class FromMade:
    """A result that the program makes, or a view of one."""

    number: int
    window: Window | None


@dataclass(frozen=True)
class Fixed:
    """A result that is no tensor."""

    value: Any


Result: TypeAlias = FromInput | FromMade | Fixed


@dataclass(frozen=True)
class Made:
    """A tensor that the program makes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    slot: int | None
    """By which the program asks for its memory; None: an operator takes that by itself."""

    @functools.cached_property
    def is_small(self) -> bool:
        return span(self.shape, self.strides) * self.dtype.itemsize <= SMALL


# Called with a slot, and how what it is for is laid out.
New: TypeAlias = Callable[[int, tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


# Memory laid out so.
Memory: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


class Giver:
    """Gives the program memory for its results, and knows later what it gave."""

    def __init__(self, memory: Memory, ready: Mapping[int, torch.Tensor] | None = None) -> None:
        self._memory = memory
        self._ready = dict(ready or {})
        self.given: dict[Any, tuple[int, torch.Tensor]] = {}
        """Slots and what they were given, by what identifies the memory."""

    def __call__(
        self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        ready = self._ready.pop(slot, None)
        new = self._memory(shape, strides, dtype) if ready is None else ready
        self.given[storage_key(new)] = (slot, new)
        return new


@dataclass(frozen=True)
class Layout:
    """What a call returns, made of inputs and new tensors."""

    results: tuple[Result, ...]
    made: tuple[Made, ...]
    spec: trees.TreeSpec

    @functools.cached_property
    def shown(self) -> list[Made]:
        """What is made, laid out as it is handed out: of most, one view is the only result."""
        views: dict[int, list[Window | None]] = {}
        for each in self.results:
            if isinstance(each, FromMade):
                views.setdefault(each.number, []).append(each.window)
        return [_as_seen(each, views.get(number, [])) for number, each in enumerate(self.made)]

    @functools.cached_property
    def large(self) -> list[tuple[int, Made]]:
        """What goes wherever there is room, and its numbers."""
        return [(number, each) for number, each in enumerate(self.shown) if not each.is_small]

    @functools.cached_property
    def small(self) -> list[tuple[int, Made]]:
        return [(number, each) for number, each in enumerate(self.shown) if each.is_small]

    def for_program(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """What is handed out, laid out as the program makes it."""
        made = self.made[number]
        if self.shown[number] is made:
            return tensor
        return tensor.as_strided(made.shape, made.strides)

    @functools.cached_property
    def is_asked_for(self) -> bool:
        """The program asks for the memory of all that it makes."""
        return all(each.slot is not None for each in self.made)

    @functools.cached_property
    def _list(self) -> type[list[Any]] | type[tuple[Any, ...]] | None:
        """What kind of list the results are, if they are just that."""
        for kind in (list, tuple):
            if self.spec == trees.flatten(kind([0] * len(self.results)))[1]:
                return kind
        return None

    # What follows is asked for in every call: kinds of results are told apart once.

    @functools.cached_property
    def _fixed(self) -> list[Any]:
        return [each.value if isinstance(each, Fixed) else None for each in self.results]

    @functools.cached_property
    def _whole(self) -> list[tuple[int, int]]:
        """Which results are tensors that were made, and which."""
        return [
            (place, each.number)
            for place, each in enumerate(self.results)
            if isinstance(each, FromMade)
            and (each.window is None or self.shown[each.number] is not self.made[each.number])
        ]

    @functools.cached_property
    def _others(self) -> list[tuple[int, FromInput | FromMade]]:
        whole = dict(self._whole)
        return [
            (place, each)
            for place, each in enumerate(self.results)
            if not isinstance(each, Fixed) and place not in whole
        ]

    def handed(self, inputs: Sequence[Any], made: Mapping[int, torch.Tensor]) -> Any:
        leaves = list(self._fixed)
        for place, number in self._whole:
            leaves[place] = made[number]
        for place, each in self._others:
            of = _input(inputs, each.place) if isinstance(each, FromInput) else made[each.number]
            leaves[place] = of if each.window is None else each.window.on(of)
        return self._list(leaves) if self._list else trees.unflatten(leaves, self.spec)


def _input(inputs: Sequence[Any], place: int) -> torch.Tensor:
    given: torch.Tensor = inputs[place]
    return given.detach() if isinstance(inputs, InputsWithHistory) else given


def _as_seen(made: Made, views: Sequence[Window | None]) -> Made:
    """`made`, laid out as the only view of it if that is all of it, and nothing twice."""
    view = views[0] if len(views) == 1 else None
    if view is None or view.offset or _overlap(view.shape, view.strides):
        return made
    if span(view.shape, view.strides) != span(made.shape, made.strides):
        return made
    if math.prod(view.shape) != math.prod(made.shape):
        return made
    return Made(view.shape, view.strides, made.dtype, made.slot)


def laid_out(
    outputs: Any, inputs: Sequence[Any], giver: Giver, device: torch.device
) -> tuple[Layout, list[torch.Tensor]]:
    """How each result is made of inputs and new tensors, and the new tensors."""
    given: dict[Any, list[int]] = {}
    for place, each in enumerate(inputs):
        if isinstance(each, torch.Tensor):
            given.setdefault(storage_key(each), []).append(place)
    leaves, spec = trees.flatten(outputs)
    numbers: dict[Any, int] = {}
    tensors: list[torch.Tensor] = []
    made: list[Made] = []
    results: list[Result] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            results.append(Fixed(leaf))
            continue
        if leaf.device != device or leaf.layout is not torch.strided or _is_lazy(leaf):
            raise Uncapturable(f"a result is {leaf.layout} on {leaf.device}, or not computed yet")
        memory = storage_key(leaf)
        if memory in given:
            place = _source(leaf, given[memory], inputs)
            results.append(FromInput(place, _window(leaf, inputs[place])))
            continue
        slot, root = giver.given.get(memory, (None, _root(leaf)))
        if memory in numbers and not _is_inside(leaf, tensors[numbers[memory]]):
            memory, root, slot = (memory, len(tensors)), leaf, None
        if memory not in numbers:
            if not _is_inside(leaf, root) or _overlap(root.shape, root.stride()):
                raise Uncapturable("a result lies in memory of which no other result is all")
            numbers[memory] = len(tensors)
            tensors.append(root)
            made.append(Made(tuple(root.shape), root.stride(), root.dtype, slot))
        number = numbers[memory]
        results.append(FromMade(number, _window(leaf, tensors[number])))
    return Layout(tuple(results), tuple(made), spec), tensors


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
    end = first + span(view.shape, view.stride())
    return view.dtype != tensor.dtype or (first >= 0 and end <= span(tensor.shape, tensor.stride()))


def _overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Several elements so laid out are one."""
    return any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True))


def _source(leaf: torch.Tensor, places: Sequence[int], inputs: Sequence[Any]) -> int:
    """The input that `leaf` is, or is a view of; they may share memory and be no views."""
    for place in places:
        if inputs[place] is leaf:
            return place
    for place in places:
        if _root(inputs[place]) is _root(leaf):
            return place
    return places[0]


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements there are from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
