"""A graph with its derivatives, compiled on demand.

A backward graph is compiled when autograd first needs it: for each pattern of missing cotangents,
and again for sizes that violate an assumption of the existing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import (
    attempt,
    differentiating,
    is_raised_in_user_code,
    location_of_graph,
    warn_of_fallback,
)
from adjoint.graph.derivative import Backward, Derivative
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import inputs_of
from adjoint.graph.purity import is_impure_graph
from adjoint.runtime.autograd_node import (
    BackwardGraph,
    KeptInputs,
    NodeProgram,
    ReadyBackward,
)
from adjoint.runtime.executable import Derivatives, Executable, PlacedCotangents, Sizes
from adjoint.runtime.specializations import (
    MAX_SIZE_VERSIONS,
    Full,
    SizeSpecializations,
    Specializations,
    Version,
    shown,
)
from adjoint.torch_private.dynamo import compiling

# Patterns of missing cotangents that have a backward graph of their own, or as many as there are
# outputs.  Zeros in place of missing cotangents would be wrong where a factor is infinite or NaN,
# and would return zeros where eager returns no gradient.
MAX_PATTERNS = 64

# Sets of needed gradients that have a backward graph of their own; others take all gradients.
MAX_NEEDED_SETS = 8

# Backward passes that are remembered: a step with second derivatives has two kinds, and sizes vary.
MAX_RECENT = 4


@dataclass(frozen=True)
class _Ready(ReadyBackward):
    """A backward graph that was compiled here."""

    backward: Backward


@dataclass(frozen=True)
class _Version:
    """A backward graph for some sizes: with all gradients, and with subsets of them."""

    whole: _Ready
    narrowed: Specializations[tuple[int, ...], _Ready]


class _RecentBackward(NamedTuple):
    """A recent backward: checked before the tables."""

    of: tuple[int, ...]
    wanted: tuple[int, ...]
    version: Version[_Version]
    ready: _Ready


class GradProgram(NodeProgram):
    """A graph with its backward graphs, for one set of inputs that require grad.

    If the graph is divided into segments, each segment has a `GradProgram` of its own.
    """

    segments: Sequence[GradProgram]

    def __init__(
        self,
        derivative: Derivative,
        wrt: tuple[int, ...],
        compiler: Derivatives,
        make: Callable[[fx.GraphModule], BackwardGraph],
    ) -> None:
        """`make` loads a backward graph, so that autograd can run and differentiate it."""
        super().__init__(derivative.layout, wrt)
        self.derivative = derivative
        self.compiler = compiler
        self.checker = compiler.checker
        self.keeps_inputs = compiler.checker is not None or self.falls_back
        """Whether eager autograd may have to run the graph again."""
        self._make = make
        self._has_failed = False
        """A backward graph could not be compiled, and the user was warned."""
        self._recent: list[_RecentBackward] = []
        self._backwards: Specializations[tuple[int, ...], SizeSpecializations[_Version]]
        self._backwards = Specializations(max(MAX_PATTERNS, len(derivative.order)))
        if derivative.first is not None:
            self._versions(derivative.cotangents_of(derivative.first)).add(
                derivative.graph_module, None
            )
        if derivative.segments is not None:
            count = len(derivative.segments.inputs)
            segments = [derivative.segment(number) for number in range(count)]
            self.segments = [GradProgram(each, of, compiler, make) for each, of in segments]

    @property
    def falls_back(self) -> bool:
        """Whether eager autograd takes over what cannot be differentiated."""
        return self.compiler.options.unsupported == "eager"

    @property
    def saved_inputs(self) -> frozenset[int]:
        """Positions of the inputs that autograd saves."""
        segments = self.derivative.segments
        if segments is None:
            return frozenset(self.derivative.saved_inputs)
        # Later inputs of a segment are outputs of earlier ones.
        count = len(inputs_of(self.derivative.graph_module.graph))
        count -= len(segments.cuts)
        saved = {place for each in self.segments for place in each.layout.saved_inputs}
        return frozenset(place for place in saved if place < count)

    def _load(self) -> Executable:
        with compiling():
            if self._forward is None:
                self._forward = self.compiler.program(self.derivative.runs)
            return self._forward

    # Backward graphs

    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[_Ready, Sizes]:
        """The backward graph for cotangents of the outputs `of`, and `sizes` by its symbols.

        `wanted`: positions in `wrt` of the inputs whose gradients this backward pass needs.
        """
        for recent in self._recent:
            if recent.of == of and recent.wanted == wanted:
                own = recent.version.fitted(sizes)
                if own is not None:
                    return recent.ready, own
        with differentiating(self.derivative.graph_module):
            versions = self._backwards.get(of)
            found = None if versions is None else versions.find(sizes)
            if found is None:
                with compiling():
                    versions = self._versions(of)
                    try:
                        found = versions.find(sizes) or versions.make(sizes)
                        assert found is not None, "there is a backward graph for all sizes"
                    except Full as full:
                        why = f"{full}; now sizes are {shown(sizes)}"
                        place = location_of_graph(self.derivative.graph_module)
                        raise DifferentiationError(
                            place.op, 1, why, place.source
                        ) from full.__cause__
            ready = self._narrowed(found.value, wanted)
        recent = _RecentBackward(of, wanted, found, ready)
        self._recent = [recent, *self._recent[: MAX_RECENT - 1]]
        return ready, found.own(sizes)

    def _versions(self, of: tuple[int, ...]) -> SizeSpecializations[_Version]:
        versions = self._backwards.get(of)
        if versions is None:
            versions = SizeSpecializations(
                self.derivative.graph_module,
                lambda graph_module: self._version(graph_module, of),
                MAX_SIZE_VERSIONS,
                "its derivative",
            )
            self._backwards.add(of, versions)
        return versions

    def _version(self, graph_module: fx.GraphModule, of: tuple[int, ...]) -> _Version:
        derivative = self.derivative
        if graph_module is not derivative.graph_module:
            # The first backward graph assumes other sizes.
            derivative = replace(derivative, graph_module=graph_module, first=None)
        made = self.compiler.backward(derivative, of, self.wrt)
        return _Version(self._ready(made), Specializations(MAX_NEEDED_SETS, evicts=False))

    def _narrowed(self, version: _Version, wanted: tuple[int, ...]) -> _Ready:
        if len(wanted) == len(self.wrt):
            return version.whole
        found = version.narrowed.get(wanted)
        if found is None:
            with compiling():
                if version.narrowed.is_full:
                    return version.whole
                whole = version.whole.backward
                found = attempt(
                    lambda: self._ready(self.compiler.narrowed(whole, frozenset(wanted))),
                    whole.graph_module,
                    "computes gradients that nobody waits for",
                )
                found = found or version.whole
                version.narrowed.add(wanted, found)
        return found

    def _ready(self, backward: Backward) -> _Ready:
        zeros = enumerate(backward.gradients)
        return _Ready(
            self._make(backward.graph_module),
            self.derivative.saved_for(backward),
            self.derivative.cotangents_of(backward),
            [place for place, each in zeros if each.of in backward.zeros],
            backward,
        )

    def in_eager(
        self,
        kept: KeptInputs | None,
        cotangents: PlacedCotangents,
        wanted: tuple[int, ...],
        error: DifferentiationError,
    ) -> list[object]:
        """The gradients by eager autograd, which runs the graph again on the `kept` inputs.

        Raises `error` if they were not kept, or if another run might give other values.
        """
        graph_module = self.derivative.graph_module
        if kept is None or kept.have_changed or is_impure_graph(graph_module.graph):
            cause = error.__cause__
            if cause is not None and is_raised_in_user_code(cause):
                raise cause
            raise error from cause
        if not self._has_failed:
            warn_of_fallback(f"eager autograd takes over: {error}", error.source)
            self._has_failed = True
        return self._eager_gradients(graph_module, kept, cotangents, wanted)

    def check(
        self,
        kept: KeptInputs | None,
        cotangents: PlacedCotangents,
        wanted: tuple[int, ...],
        gradients: Sequence[object],
    ) -> None:
        """Compare gradients with those of eager autograd, if it can run the graph again."""
        graph_module = self.derivative.graph_module
        if self.checker is None or not self.checker.wants(self):
            return
        if kept is None or kept.have_changed or is_impure_graph(graph_module.graph):
            return

        def eager() -> list[object]:
            composed = self.compiler.composed(graph_module)
            found = self._eager_gradients(composed, kept, cotangents, wanted)
            return [found[place] for place in wanted]

        wrt = [self.wrt[place] for place in wanted]
        found = [gradients[place] for place in wanted]
        self.checker.gradients(self.derivative, wrt, kept.inputs, cotangents, found, eager)

    def _eager_gradients(
        self,
        graph_module: fx.GraphModule,
        kept: KeptInputs,
        cotangents: PlacedCotangents,
        wanted: tuple[int, ...],
    ) -> list[object]:
        with torch.enable_grad():
            # Views, so that autograd stops here even if one input was computed from another.
            inputs = list(kept.inputs)
            places = [self.wrt[place] for place in wanted]
            for place in places:
                inputs[place] = inputs[place].view_as(inputs[place])
            outputs = evaluate(graph_module, inputs)
        found = torch.autograd.grad(
            [outputs[place] for place, _ in cotangents],
            [inputs[place] for place in places],
            [cotangent for _, cotangent in cotangents],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        gradients: list[object] = [None] * len(self.wrt)
        for place, gradient in zip(wanted, found, strict=True):
            gradients[place] = gradient
        return gradients
