"""Where a compiled graph is entered: with flat inputs, whichever of them share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from adjoint.errors import CaptureError, DifferentiationError
from adjoint.graph.boundary import warn_of_fallback
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.evaluation import InOwnMemory
from adjoint.runtime.calling import Runnable, call, finish
from adjoint.runtime.specializations import Specializations
from adjoint.torch_private.dynamo import COMPILING
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.modes import is_autocast_enabled

Sharing: TypeAlias = tuple[Any, ...]

# A graph, the positions of its inputs, and the positions of the results among its outputs.
DirectWay: TypeAlias = tuple[Runnable, list[int], list[int]]


# Patterns of inputs that share memory for which captures of one function are kept.
MAX_SHARING_PATTERNS = 16


@dataclass
class _Variant:
    """A captured program, and what runs it."""

    captured: CapturedProgram
    runnable: Runnable | None = None


class EntryPoint:
    """What Dynamo calls in place of a graph of the user's, with flat inputs.

    Which inputs are windows on one memory decides what a write to one of them means, so a capture
    holds for one pattern of sharing, and for another pattern the graph is captured anew.  A program
    that writes to no input holds for all.  Nor has Dynamo a guard for where in its memory an input
    is, which `as_strided` and its like look at.
    """

    def __init__(
        self,
        first: CapturedProgram,
        recapture: Callable[[Sequence[Any]], CapturedProgram],
        load: Callable[[fx.GraphModule], Runnable],
        eager: Callable[..., Any] | None = None,
    ) -> None:
        """`load` makes a graph ready to run, and to be differentiated by autograd.

        `eager` is the program itself, if it is to run where it cannot be captured or loaded.
        """
        self.first = first
        self._first = _Variant(first)
        self._load = load
        self._written = tuple(write.to.index for write in first.calling.writes)
        self._placed = tuple(place.index for place in first.calling.placements)
        # A graph that holds for all of them lets go of what it was captured from.
        self._recapture = recapture if self._written or self._placed else None
        self._by_sharing: Specializations[Sharing, _Variant] = Specializations(MAX_SHARING_PATTERNS)
        self._pattern: Sharing | None = None
        self._eager = eager
        self._direct: DirectWay | None = None
        self._said: set[str] = set()
        """Why it ran in eager torch."""

    def __call__(self, *inputs: Any) -> Any:
        if self._direct is not None and not is_autocast_enabled():
            graph, places, results = self._direct
            outputs = graph([inputs[place] for place in places])
            if isinstance(outputs, InOwnMemory):
                return [outputs[place] for place in results]
            return finish(self.first.calling, inputs, outputs)
        try:
            variant = self._for(inputs)
            runnable = variant.runnable or self._loaded(variant)
        except (CaptureError, DifferentiationError) as error:
            if self._eager is None:
                raise
            return self._in_eager(error, inputs)
        return call(runnable, variant.captured.calling, variant.captured.leaves(inputs))

    def runnables(self) -> list[Runnable]:
        """What was made ready to run so far."""
        variants = [self._first, *self._by_sharing.values()]
        return [each.runnable for each in variants if each.runnable is not None]

    def _loaded(self, variant: _Variant) -> Runnable:
        with COMPILING:
            if variant.runnable is None:
                variant.runnable = self._load(variant.captured.graph_module)
                if variant is self._first:
                    self._direct = self._direct_way(variant.runnable)
            return variant.runnable

    def _direct_way(self, runnable: Runnable) -> DirectWay | None:
        """The graph, its inputs and its results, if a call is nothing but to run it on them."""
        captured, calling = self.first, self.first.calling
        if self._written or self._placed or captured.bound or captured.closed_over:
            return None
        if calling.plain_inputs is None or calling.plain_results is None or calling.view_values:
            return None
        return runnable, calling.plain_inputs, calling.plain_results

    def _in_eager(self, error: CaptureError | DifferentiationError, inputs: Sequence[Any]) -> Any:
        assert self._eager is not None
        if str(error) not in self._said:
            self._said.add(str(error))
            warn_of_fallback(f"runs in eager torch: {error}", error.source)
        return self._eager(*inputs)

    def _for(self, inputs: Sequence[Any]) -> _Variant:
        if not (self._written or self._placed):
            return self._first
        pattern = sharing(self.first.leaves(inputs), self._written, self._placed)
        if self._pattern is None:
            # The first call is with the inputs that the first capture was made for.
            self._pattern = pattern
        if pattern == self._pattern:
            return self._first
        # What is captured here holds for the numbers at hand alone.
        key = (pattern, tuple(map(_numbers, inputs)))
        found = self._by_sharing.get(key)
        if found is None:
            assert self._recapture is not None
            with COMPILING:
                found = _Variant(self._recapture(inputs))
                self._by_sharing.add(key, found)
        return found


def sharing(inputs: Sequence[Any], written: Sequence[int], placed: Sequence[int] = ()) -> Sharing:
    """Which inputs show memory that is written to, and which part of it each shows.

    So too of memory of which the program sees more than the inputs at `placed` show.
    """
    memories = {storage_key(inputs[index]) for index in (*written, *placed)} - {None}
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            memory = storage_key(value)
            if memory in memories:
                groups.setdefault(memory, []).append(index)
    shared = [group for group in groups.values() if len(group) > 1]
    places = tuple(
        (index, id(inputs[index]) == id(inputs[group[0]]), *_place(inputs[index]))
        for group in shared
        for index in group
    )
    alone = [inputs[index] for index in placed]
    return (*places, *((x.storage_offset(), x.untyped_storage().nbytes()) for x in alone))


def _numbers(value: Any) -> Any:
    """The sizes and strides of a tensor; a number is itself."""
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride() if value.layout is torch.strided else None


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    base = tensor._base if tensor._is_view() else None
    place = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return place if base is None else (*place, *_place(base))
