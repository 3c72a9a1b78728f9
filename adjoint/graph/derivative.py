"""What differentiating and partitioning make of a graph, as plain data.

The reverse sweep makes a `Joint`, and the partition makes a `Derivative` of it for the autograd
bridge.  Descriptors say what a graph takes and returns; the positions of inputs and outputs that a
run uses are computed from them here, once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import fx

from adjoint.graph.descriptors import Gradient, Input, Output, Saved, SavedInput, Tangent, order_of
from adjoint.graph.metadata import (
    derivative_order,
    has_output_descriptors,
    input_descriptors,
    output_descriptors,
)
from adjoint.graph.origins import Origin

Value = TypeVar("Value")


def order_of_graph(graph: fx.Graph) -> int:
    """How often the user's program was differentiated to give this graph.

    A derivative may have no node of its own: that of an identity has only inputs and outputs.
    """
    described = [node.meta.get("descriptor") for node in graph.nodes]
    if has_output_descriptors(graph):
        described += output_descriptors(graph)
    orders = [derivative_order(node) for node in graph.nodes]
    return max(0, *orders, *(order_of(each) for each in described if each is not None))


@dataclass(frozen=True)
class Joint:
    """A graph with its reverse sweep: from inputs and tangents to outputs and gradients."""

    graph_module: fx.GraphModule
    order: int
    """The order of the derivative; this sweep added the tangents and gradients of that order."""
    reached: frozenset[Origin] = frozenset()
    """The forward values that had a cotangent."""
    entangled: frozenset[Origin] = frozenset()
    """Arguments and results of operators with several differentiable results.  Which of them a
    derivative reads depends on the set of results that have cotangents."""
    zeros: frozenset[Input] = frozenset()
    """Inputs whose gradient is the constant None though the outputs depend on them: eager returns
    zeros there, not None."""


@dataclass(frozen=True)
class Backward:
    """A backward graph: from saved values and tangents to gradients."""

    graph_module: fx.GraphModule
    zeros: frozenset[Input] = frozenset()
    """As in `Joint`, of the inputs whose gradients it returns."""

    @functools.cached_property
    def order(self) -> int:
        return order_of_graph(self.graph_module.graph)

    @functools.cached_property
    def inputs(self) -> tuple[Input, ...]:
        """What its inputs are: saved inputs of the forward graph, saved outputs, then tangents."""
        return input_descriptors(self.graph_module.graph)

    @functools.cached_property
    def of(self) -> tuple[Output, ...]:
        """The outputs whose cotangents it takes."""
        tangents = [each for each in self.inputs if isinstance(each, Tangent)]
        return tuple(each.of for each in tangents if each.order == self.order)

    @functools.cached_property
    def saved(self) -> tuple[Input, ...]:
        """The saved values that it takes, in the order of its inputs."""
        return tuple(
            each
            for each in self.inputs
            if not (isinstance(each, Tangent) and each.order == self.order)
        )

    @functools.cached_property
    def gradients(self) -> tuple[Gradient, ...]:
        """The gradients it returns; some may be the constant None."""
        returned = output_descriptors(self.graph_module.graph)
        return tuple(each for each in returned if isinstance(each, Gradient))


@dataclass(frozen=True)
class Segments:
    """Which part of a graph each autograd node stands for, where results depend on results.

    In eager torch each result is a node of autograd's graph.  So a result that others are computed
    from begins a new *segment* here: the graph that is differentiated has an input for it, and each
    segment is one autograd node.
    """

    cuts: tuple[int, ...]
    """Outputs that later segments take as inputs, in the order of these last inputs."""
    of_output: tuple[int, ...]
    """The segment of each output."""
    inputs: tuple[frozenset[int], ...]
    """For each segment, positions of the inputs that its outputs depend on."""


def picker(places: Sequence[int]) -> Callable[[Sequence[Value]], tuple[Value, ...]]:
    """A function that takes the values at `places` out of a sequence; it runs in every call."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    if not places:
        return lambda values: ()
    (place,) = places
    return lambda values: (values[place],)


@dataclass(frozen=True)
class NodeLayout:
    """What the autograd node of a graph has to know, as positions of its inputs and outputs."""

    results: int
    """How many of the outputs are results of the program."""
    saved_inputs: tuple[int, ...]
    saved_outputs: tuple[int, ...]
    order: tuple[int, ...]
    """The differentiable outputs, in the order in which backward graphs take cotangents."""
    history: frozenset[int]
    """The outputs that require grad."""
    own: frozenset[int]
    """The outputs that the autograd node returns."""
    segments: Segments | None = None
    """Set if results are computed from results."""

    @functools.cached_property
    def take_saved_inputs(self) -> Callable[[Sequence[Value]], tuple[Value, ...]]:
        """Takes the saved inputs out of all inputs."""
        return picker(self.saved_inputs)

    @functools.cached_property
    def take_saved_outputs(self) -> Callable[[Sequence[Value]], tuple[Value, ...]]:
        """Takes the saved outputs out of all outputs."""
        return picker(self.saved_outputs)


@dataclass(frozen=True)
class Derivative:
    """A forward graph with saved values, differentiable with respect to some of its inputs."""

    graph_module: fx.GraphModule
    """The graph that is differentiated: it returns the results, then further saved values."""
    results: int
    """How many of its outputs are results of the program."""
    saved: tuple[Input, ...]
    """The saved values: inputs by their own descriptors, outputs as `SavedInput`."""
    differentiable: frozenset[int]
    """Outputs that depend differentiably on these inputs."""
    first: Backward | None
    """The backward graph of the sweep that determined the saved values."""
    requiring: frozenset[int] = frozenset()
    """Results that require grad in eager, although they depend on none of these inputs."""
    executed: fx.GraphModule | None = None
    """The graph that runs, if it is not the one that is differentiated."""
    segments: Segments | None = None
    """Set if results are computed from results; `graph_module` then has more inputs."""
    of_segment: frozenset[int] | None = None
    """The outputs of this segment; None: the graph is not divided."""

    @property
    def runs(self) -> fx.GraphModule:
        """The graph that runs."""
        return self.executed or self.graph_module

    @property
    def first_backward(self) -> Backward:
        """`first`, which must not be None."""
        assert self.first is not None
        return self.first

    @functools.cached_property
    def layout(self) -> NodeLayout:
        """What its autograd node has to know."""
        return NodeLayout(
            self.results,
            self.saved_inputs,
            self.saved_outputs,
            self.order,
            self.history,
            self.own,
            self.segments,
        )

    # Each is computed once.

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The differentiable outputs, in the order in which backward graphs take cotangents."""
        return tuple(sorted(self.differentiable))

    @functools.cached_property
    def own(self) -> frozenset[int]:
        """The outputs that the autograd node returns."""
        return frozenset(range(len(self._outputs))) if self.of_segment is None else self.of_segment

    @functools.cached_property
    def history(self) -> frozenset[int]:
        """The outputs that require grad."""
        return self.differentiable | self.requiring

    @functools.cached_property
    def saved_inputs(self) -> tuple[int, ...]:
        """Positions of the saved inputs."""
        places = {each: place for place, each in enumerate(self._inputs)}
        return tuple(places[each] for each in self.saved if each in places)

    @functools.cached_property
    def saved_outputs(self) -> tuple[int, ...]:
        """Positions of the saved outputs."""
        known = set(self._inputs)
        return tuple(
            each.of.index
            for each in self.saved
            if isinstance(each, SavedInput) and each not in known
        )

    @property
    def freed(self) -> dict[Input, int]:
        """The saved values that the backward frees, neither inputs nor results: their outputs."""
        known = set(self._inputs)
        return {
            each: each.of.index
            for each in self.saved
            if isinstance(each, SavedInput) and each not in known and each.of.index >= self.results
        }

    @functools.cached_property
    def _inputs(self) -> tuple[Input, ...]:
        return input_descriptors(self.graph_module.graph)

    @functools.cached_property
    def _outputs(self) -> tuple[Output, ...]:
        return output_descriptors(self.graph_module.graph)

    @functools.cached_property
    def _output_places(self) -> dict[Output, int]:
        return {each: place for place, each in enumerate(self._outputs)}

    def described(self, outputs: Sequence[int]) -> tuple[Output, ...]:
        """The descriptors of the outputs at these positions."""
        return tuple(self._outputs[place] for place in outputs)

    def cotangents_of(self, backward: Backward) -> tuple[int, ...]:
        """Positions of the outputs whose cotangents a backward graph takes."""
        return tuple(self._output_places[each] for each in backward.of)

    def saved_from(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> tuple[Value, ...]:
        """The saved values among the inputs and outputs of the forward graph: inputs first."""
        return self.layout.take_saved_inputs(inputs) + self.layout.take_saved_outputs(outputs)

    def saved_for(self, backward: Backward) -> list[int]:
        """Which of the saved values - inputs, then outputs - a backward graph takes."""
        places = {each: place for place, each in enumerate(self.saved)}
        return [places[each] for each in backward.saved]

    def _first_segment_with(self, saved: Input) -> int:
        """The first segment that can take this value from a run of the graph, and save it."""
        assert self.segments is not None
        of_output, cuts = self.segments.of_output, self.segments.cuts
        standing = self._inputs[len(self._inputs) - len(cuts) :]
        if saved in standing:
            return of_output[cuts[standing.index(saved)]] + 1
        if isinstance(saved, SavedInput) and saved not in self._inputs:
            return of_output[saved.of.index]
        return 0

    def segment(self, number: int) -> tuple[Derivative, tuple[int, ...]]:
        """One segment, and the positions of the inputs that it depends on."""
        assert self.segments is not None
        of_output = enumerate(self.segments.of_output)
        own = frozenset(place for place, each in of_output if each == number)
        segment = replace(
            self,
            saved=tuple(n for n in self.saved if self._first_segment_with(n) <= number),
            differentiable=self.differentiable & own,
            requiring=self.requiring & own,
            first=None,
            segments=None,
            of_segment=own,
        )
        return segment, tuple(sorted(self.segments.inputs[number]))


def saved_output(place: int, order: int) -> Saved:
    """The descriptor of the output at this position, saved for a derivative of `order`."""
    return Saved(place, checked=True, order=order)
