"""What differentiating and partitioning make of a graph, as plain data.

`Joint` goes from the reverse sweep to the partition, `Derivative` from there to the autograd
bridge.  Descriptors say what a graph takes and returns; positions among the inputs and outputs of a
run are read off them here, once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from adjoint.graph.descriptors import Gradient, Input, Output, Saved, SavedInput, Tangent, order_of
from adjoint.graph.metadata import (
    derivative_order,
    has_output_descriptors,
    input_descriptors,
    output_descriptors,
)
from adjoint.graph.origins import Origin


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
    """The order of the derivative: tangents and gradients of it are of this sweep."""
    reached: frozenset[Origin] = frozenset()
    """The forward values that had a cotangent."""
    entangled: frozenset[Origin] = frozenset()
    """Arguments and results of operators with several differentiable results.  Which of them a
    derivative reads depends on which results have cotangents."""
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
        """What it takes of the forward run, in the order of its inputs."""
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
    """The outputs that the last inputs of the differentiated graph stand for."""
    of_output: tuple[int, ...]
    """The segment of each output."""
    inputs: tuple[frozenset[int], ...]
    """For each segment, positions of the inputs that its outputs depend on."""


@dataclass(frozen=True)
class Derivative:
    """A graph made ready to be differentiated with respect to some of its inputs."""

    graph_module: fx.GraphModule
    """What is differentiated: it returns the results, then values that are saved beside them."""
    results: int
    """How many of its outputs are results of the program."""
    saved: tuple[Input, ...]
    """The saved values: inputs by their own descriptors, outputs as `SavedInput`."""
    differentiable: frozenset[int]
    """Outputs that depend on the inputs of interest."""
    first: Backward | None
    """The backward graph that came out of the sweep which decided what is saved."""
    requiring: frozenset[int] = frozenset()
    """Results that require grad, as eager's do, though they depend on none of those inputs."""
    executed: fx.GraphModule | None = None
    """What runs, if it computes the outputs in another way than what is differentiated."""
    segments: Segments | None = None
    """Where results are computed from results; then what is differentiated has more inputs."""
    of_segment: frozenset[int] | None = None
    """The outputs of the one segment that this is; None: all."""

    @property
    def runs(self) -> fx.GraphModule:
        """The graph to be run."""
        return self.executed or self.graph_module

    @property
    def first_backward(self) -> Backward:
        """The same, where it is known to be there."""
        assert self.first is not None
        return self.first

    # Asked for in every call, so each is computed once.

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The outputs that cotangents are of, in the order backward graphs take them."""
        return tuple(sorted(self.differentiable))

    @functools.cached_property
    def own(self) -> frozenset[int]:
        """The outputs of the autograd node."""
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
        """What the outputs at these positions are."""
        return tuple(self._outputs[place] for place in outputs)

    def cotangents_of(self, backward: Backward) -> tuple[int, ...]:
        """Positions of the outputs whose cotangents a backward graph takes."""
        return tuple(self._output_places[each] for each in backward.of)

    def saved_for(self, backward: Backward) -> list[int]:
        """Which of the saved values - inputs, then outputs - a backward graph takes."""
        places = {each: place for place, each in enumerate(self.saved)}
        return [places[each] for each in backward.saved]

    def segment(self, number: int) -> tuple[Derivative, tuple[int, ...]]:
        """One segment, and the positions of the inputs that it depends on."""
        assert self.segments is not None
        of_output = enumerate(self.segments.of_output)
        own = frozenset(place for place, each in of_output if each == number)
        segment = replace(
            self,
            differentiable=self.differentiable & own,
            requiring=self.requiring & own,
            first=None,
            segments=None,
            of_segment=own,
        )
        return segment, tuple(sorted(self.segments.inputs[number]))


def saved_output(place: int, order: int) -> Saved:
    """What the output at this position is called where it is saved for a derivative of `order`."""
    return Saved(place, checked=True, order=order)
