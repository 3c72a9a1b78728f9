"""The entry point of a compiled graph: finds the capture that fits how the inputs alias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from adjoint.errors import CaptureError, DifferentiationError
from adjoint.graph.boundary import warn_of_fallback
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import picker
from adjoint.graph.evaluation import InOwnMemory
from adjoint.open_types import TorchValue
from adjoint.runtime.calling import Runnable, call, finish
from adjoint.runtime.sharing import Sharing, sharing
from adjoint.runtime.specializations import Specializations
from adjoint.torch_private.dynamo import COMPILING
from adjoint.torch_private.modes import is_autocast_enabled

Pick: TypeAlias = Callable[[Sequence[object]], tuple[object, ...]]

# A graph, a function that picks its inputs from the caller's, and one that picks the results from
# its outputs.
DirectCall: TypeAlias = tuple[Runnable, Pick, Pick]

# Captures of one function besides the first: each is for another pattern in which inputs alias, and
# for the sizes and strides of one call.
MAX_SHARING_PATTERNS = 16


@dataclass
class _Variant:
    """A captured program, and its runnable once it is loaded."""

    captured: CapturedProgram
    runnable: Runnable | None = None


class EntryPoint:
    """The function that Dynamo calls in place of the user's graph, with flat inputs.

    A write to an input changes all inputs that share its storage.  So a capture with writes is
    valid for one pattern of aliasing, and the graph is captured again for another; a capture
    without writes is valid for all.  Dynamo has no guards on storage offsets either: a capture
    that depends on them, through `as_strided` for instance, is valid for these offsets only.
    """

    def __init__(
        self,
        first: CapturedProgram,
        recapture: Callable[[Sequence[object]], CapturedProgram],
        load: Callable[[fx.GraphModule], Runnable],
        eager: Callable[..., object] | None = None,
    ) -> None:
        """`load` compiles a graph, so that autograd can run and differentiate it.

        `eager`: the program itself, to run if capture or loading fails; None: raise.
        """
        self.first = first
        self._first = _Variant(first)
        self._load = load
        self._written = tuple(write.to.index for write in first.calling.writes)
        self._placed = tuple(place.index for place in first.calling.placements)
        # A capture that is valid for all patterns need not keep the graph it was captured from.
        self._recapture = recapture if self._written or self._placed else None
        self._by_sharing: Specializations[Sharing, _Variant] = Specializations(MAX_SHARING_PATTERNS)
        self._pattern: Sharing | None = None
        self._eager = eager
        self._direct: DirectCall | None = None
        self._said: set[str] = set()
        """Reasons for running in eager torch that the user was warned of."""

    def __call__(self, *inputs: object) -> TorchValue:
        if self._direct is not None and not is_autocast_enabled():
            graph, take_inputs, take_results = self._direct
            outputs = graph(take_inputs(inputs))
            if isinstance(outputs, InOwnMemory):
                return take_results(outputs)
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
        """The graphs loaded so far."""
        variants = [self._first, *self._by_sharing.values()]
        return [each.runnable for each in variants if each.runnable is not None]

    def _loaded(self, variant: _Variant) -> Runnable:
        with COMPILING:
            if variant.runnable is None:
                variant.runnable = self._load(variant.captured.graph_module)
                if variant is self._first:
                    self._direct = self._direct_call(variant.runnable)
            return variant.runnable

    def _direct_call(self, runnable: Runnable) -> DirectCall | None:
        """The direct call, if the calling convention has no effects, views or bound inputs."""
        captured, calling = self.first, self.first.calling
        if self._written or self._placed or captured.bound or captured.closed_over:
            return None
        if calling.plain_inputs is None or calling.plain_results is None or calling.view_values:
            return None
        return runnable, picker(calling.plain_inputs), picker(calling.plain_results)

    def _in_eager(
        self, error: CaptureError | DifferentiationError, inputs: Sequence[object]
    ) -> object:
        assert self._eager is not None
        if str(error) not in self._said:
            self._said.add(str(error))
            warn_of_fallback(f"runs in eager torch: {error}", error.source)
        return self._eager(*inputs)

    def _for(self, inputs: Sequence[object]) -> _Variant:
        if not (self._written or self._placed):
            return self._first
        pattern = sharing(self.first.leaves(inputs), self._written, self._placed)
        if self._pattern is None:
            # Dynamo makes the first call with the inputs of the first capture.
            self._pattern = pattern
        if pattern == self._pattern:
            return self._first
        # Outside of Dynamo there are no guards on sizes: this capture is valid for these only.
        key = (pattern, tuple(map(_numbers, inputs)))
        found = self._by_sharing.get(key)
        if found is None:
            assert self._recapture is not None
            with COMPILING:
                found = _Variant(self._recapture(inputs))
                self._by_sharing.add(key, found)
        return found


def _numbers(value: object) -> object:
    """The sizes and strides of a tensor; a number is itself."""
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride() if value.layout is torch.strided else None
