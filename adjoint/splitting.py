"""Splitting a joint graph into a `Derivative`: which values the forward graph saves.

The minimum cut finds the values that the first derivative needs.  At the second order the saved
values have cotangents themselves, so values that their derivatives need are saved as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from adjoint.differentiate.activity import outputs_with_derivative
from adjoint.differentiate.segments import joined, segments_of
from adjoint.graph.derivative import Derivative, Joint
from adjoint.graph.metadata import outputs_of
from adjoint.graph.origins import Origin, is_part, origins_of
from adjoint.host_memory import to_host
from adjoint.loops.chain_footprint import ChainFootprint
from adjoint.partition.budget import within_budget
from adjoint.partition.split import Forward, Split
from adjoint.pipeline import FORWARD, LINEAR
from adjoint.stage_runner import StageRunner
from adjoint.targets import target_of


@dataclass(frozen=True)
class Splitting:
    """Splits the joint graphs of one program."""

    runner: StageRunner
    """The compiler, which runs passes."""
    differentiated: Callable[[fx.GraphModule, Sequence[int], Sequence[int]], Joint]
    """The optimized joint graph of outputs of a graph with respect to inputs of it."""
    footprint: Callable[[Derivative], ChainFootprint | None]
    """The predicted memory of a derivative, for the option `memory_budget`."""
    wrt: Sequence[int]
    """The inputs that are differentiated with respect to."""
    results: int
    """How many outputs are the program's own."""
    requiring: frozenset[int]
    """The outputs that require grad."""
    cuts: tuple[int, ...] = ()
    """The outputs at which the graph is cut into segments."""

    def derivative(self, joint: Joint) -> Derivative:
        """The forward graph with its saved values, and the backward graph."""
        budget = self.runner.options.memory_budget
        # Derivatives of a backward graph recompute what it recomputes: its nodes are marked.
        if budget is None or joint.order > 1:
            return self._split(joint)
        rates = target_of(joint.graph_module, self.runner.options).rates
        return within_budget(budget, joint, self._split, self.footprint, rates)

    def _split(self, joint: Joint, recomputes: bool = True) -> Derivative:
        split = Split(joint, recomputes)
        forward = self._forward(joint, split)
        backward = split.backward(forward.nodes, forward.saved)
        executed = forward.graph_module
        primal = self.runner.passes(FORWARD, executed, joint.order - 1)
        differentiable = frozenset(outputs_with_derivative(primal, self.wrt))
        segments = segments_of(primal, self.wrt, self.cuts) if self.cuts else None
        if self.cuts:
            executed = self.runner.passes(LINEAR, joined(executed, self.cuts), joint.order - 1)
        return Derivative(
            primal,
            self.results,
            forward.saved,
            differentiable,
            backward,
            self.requiring - differentiable,
            executed,
            segments,
        )

    def _forward(self, joint: Joint, split: Split) -> Forward:
        """The forward graph, which saves what derivatives of every order need.

        If the first sweep had no cotangent of some saved value, another sweep finds what its
        derivative needs.
        """
        # It is itself a backward graph, whose further derivatives may need any of its inputs.
        if joint.order > 1:
            return split.forward(split.primals)
        needed, reached = set(joint.entangled), set(joint.reached)
        forward = split.forward(split.values(needed))
        while self._has_unreached(forward, reached):
            primal = self.runner.passes(FORWARD, forward.graph_module, 0)
            of = outputs_with_derivative(primal, self.wrt)
            again = self.differentiated(primal, of, self.wrt)
            if again.reached <= reached:
                break
            reached |= again.reached
            needed |= again.entangled
            needed |= {o for node in Split(again).needed() for o in origins_of(node)}
            forward = split.forward(split.values(needed))
        return forward

    def _has_unreached(self, forward: Forward, reached: set[Origin]) -> bool:
        """Whether some saved value has a derivative, but no sweep so far had a cotangent of it."""
        # A value in host memory has the derivatives of the value that it is a copy of.
        returned = [
            node.args[0] if node.target is to_host else node
            for node in outputs_of(forward.graph_module.graph)
        ]
        return any(
            place >= forward.results
            and not is_part(returned[place])
            and reached.isdisjoint(origins_of(returned[place]))
            for place in outputs_with_derivative(forward.graph_module, self.wrt)
        )
