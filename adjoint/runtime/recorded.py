"""What the bridge asks the compiler for: graphs with saved values and their backward graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from torch import fx

from adjoint.graph.metadata import outputs_of

# Takes its inputs out of the list, so that each can be released after its last use.  One that has
# an attribute `forgets_histories` knows what it means that they are `Tracked`.
Executable: TypeAlias = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Reversed:
    """A backward graph for cotangents of the outputs `of`, and which saved values it takes."""

    graph_module: fx.GraphModule
    of: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    zeros: frozenset[int] = frozenset()
    """Which gradients are zero though the results depend on the input: eager gives zeros there."""


@dataclass(frozen=True)
class Stages:
    """How a graph is differentiated some of whose results are computed from others of them."""

    cuts: tuple[int, ...]
    """The results that the last inputs of what is differentiated stand for."""
    levels: tuple[int, ...]
    """The stage of each output."""
    uses: tuple[frozenset[int], ...]
    """For each stage, the inputs that its outputs depend on."""


@dataclass(frozen=True)
class Recorded:
    """A graph made ready to be differentiated with respect to some of its inputs."""

    graph_module: fx.GraphModule
    results: int
    saved_inputs: tuple[int, ...]
    saved_outputs: tuple[int, ...]
    differentiable: frozenset[int]
    """Outputs that depend on those inputs."""
    first: Reversed
    """The backward graph that comes out of the sweep which decided what is saved."""
    requiring: frozenset[int] = frozenset()
    """Results that require grad, as eager's do, though they depend on none of those inputs."""
    executed: fx.GraphModule | None = None
    """What runs, if it computes the same in another way than what is differentiated."""
    stages: Stages | None = None
    """Where results are computed from others; then what is differentiated has more inputs."""
    of_stage: frozenset[int] | None = None
    """The outputs of the one stage that this is; None: all."""

    @property
    def runs(self) -> fx.GraphModule:
        """The graph to be run."""
        return self.executed or self.graph_module

    # Asked for in every call.

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The outputs that cotangents are of."""
        return tuple(sorted(self.differentiable))

    @functools.cached_property
    def own(self) -> frozenset[int]:
        """The outputs that are noted as those of the graph."""
        everything = len(outputs_of(self.graph_module.graph))
        return frozenset(range(everything)) if self.of_stage is None else self.of_stage

    @functools.cached_property
    def history(self) -> frozenset[int]:
        return self.differentiable | self.requiring

    def stage(self, level: int) -> tuple[Recorded, tuple[int, ...]]:
        """One stage of a graph in stages, and its inputs of interest: those it depends on."""
        assert self.stages is not None
        levels = enumerate(self.stages.levels)
        own = frozenset(place for place, each in levels if each == level)
        stage = replace(
            self,
            differentiable=self.differentiable & own,
            requiring=self.requiring & own,
            first=replace(self.first, of=()),
            stages=None,
            of_stage=own,
        )
        return stage, tuple(sorted(self.stages.uses[level]))

    def taken_by(self, made: Reversed) -> list[int]:
        """Which of the values saved - inputs, then outputs - a backward graph takes."""
        inputs = {index: place for place, index in enumerate(self.saved_inputs)}
        outputs = {i: place for place, i in enumerate(self.saved_outputs, len(inputs))}
        return [*map(inputs.__getitem__, made.inputs), *map(outputs.__getitem__, made.outputs)]


class Builder(Protocol):
    """What the bridge asks of the compiler."""

    @property
    def falls_back(self) -> bool:
        """What cannot be differentiated is left to eager autograd."""
        ...

    def record(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], in_stages: bool = False
    ) -> Recorded | None:
        """The graph with saved values; None if nothing it returns requires grad for `wrt`.

        `in_stages`: results can be differentiated with respect to each other.
        """
        ...

    def reverse(self, recorded: Recorded, of: Sequence[int], wrt: Sequence[int]) -> Reversed:
        """The backward graph for cotangents of the outputs `of`."""
        ...

    def narrow(self, made: Reversed, places: frozenset[int]) -> Reversed:
        """The same without the gradients that are not in `places`."""
        ...

    def load(self, graph_module: fx.GraphModule) -> Executable:
        """The graph, ready to run."""
        ...

    def in_torch(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph, to be run op by op where torch differentiates the ops."""
        ...
