"""What the runtime asks of the stages: graphs with saved values, their backward graphs, executables."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.sweep import Sweep
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import outputs_of
from adjoint.graph.purity import remove_dead_code
from adjoint.optimize.cse import merge_common_subexpressions
from adjoint.options import Options
from adjoint.partition.split import Forward, Split
from adjoint.runtime.bridge import Executable, Recorded, Reversed


class Build:
    """Makes what the autograd bridge needs, when it needs it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        # The first backward graph comes out of the same sweep that decided what is saved.
        self._first: dict[fx.GraphModule, tuple[tuple[int, ...], Reversed]] = {}

    def record(self, graph_module: fx.GraphModule, wrt: Sequence[int]) -> Recorded | None:
        """The graph with saved values; None if nothing it returns depends on `wrt`."""
        results = _differentiable_outputs(graph_module, wrt)
        if not results:
            return None
        sweep, joint = self._joint(graph_module, results, wrt)
        split = Split(joint, sweep.order)
        # A backward graph runs here only to be differentiated again, in any of several ways.
        also = split.primals if sweep.order > 1 else sweep.several_results()
        forward = split.forward(also)
        if sweep.order == 1 and self._leaves_out(sweep, forward, wrt):
            also = [*also, *self._also_needed(forward, wrt)]
            forward = split.forward(also)
        backward = split.backward(forward.nodes, forward.inputs, forward.outputs)
        differentiable = frozenset(_differentiable_outputs(forward.graph_module, wrt))
        self._first[forward.graph_module] = (
            tuple(results),
            Reversed(backward.graph_module, backward.inputs, backward.outputs),
        )
        return Recorded(
            forward.graph_module,
            forward.results,
            forward.inputs,
            forward.outputs,
            differentiable,
        )

    def reverse(self, recorded: Recorded, of: Sequence[int], wrt: Sequence[int]) -> Reversed:
        """The backward graph for cotangents of the outputs `of`."""
        pattern, first = self._first[recorded.graph_module]
        if tuple(of) == pattern:
            return first
        sweep, joint = self._joint(recorded.graph_module, of, wrt)
        split = Split(joint, sweep.order)
        nodes = [node for node, _ in split.results]
        backward = split.backward(nodes, recorded.saved_inputs, recorded.saved_outputs)
        return Reversed(backward.graph_module, backward.inputs, backward.outputs)

    def transpose(
        self, backward: fx.GraphModule, saved: int
    ) -> tuple[fx.GraphModule, list[int]]:
        """The derivative along inputs, given the backward graph, which is linear in its tangents.

        `backward` takes `saved` values, then tangents.  Returns a graph from saved values and tangents
        of the inputs to tangents of the outputs, and which inputs have a part in it.
        """
        gradients = outputs_of(backward.graph)
        present = [i for i, node in enumerate(gradients) if isinstance(node, fx.Node)]
        inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
        sweep, joint = self._joint(backward, present, range(saved, len(inputs)))
        return Split(joint, sweep.order).transposed(saved), present

    def load(self, graph_module: fx.GraphModule) -> Executable:
        """The graph, ready to run."""
        return lambda inputs: evaluate(graph_module, inputs)

    def _leaves_out(
        self, sweep: Sweep, forward: Forward, wrt: Sequence[int]
    ) -> bool:
        """Some saved value has a derivative that the first backward graph has no part of."""
        reached = {sweep.copies[node] for node in sweep.reached}
        nodes, active = forward.nodes, _differentiable_outputs(forward.graph_module, wrt)
        return any(place >= forward.results and nodes[place] not in reached for place in active)

    def _also_needed(self, forward: Forward, wrt: Sequence[int]) -> list[fx.Node]:
        """What the derivative of the saved values themselves needs."""
        of = _differentiable_outputs(forward.graph_module, wrt)
        sweep, joint = self._joint(forward.graph_module, of, wrt)
        origins = {copy: forward.origins[node] for node, copy in sweep.copies.items()}
        needed = Split(joint, sweep.order).needed()
        return [origins[node] for node in needed if node in origins]

    def _joint(
        self, graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
    ) -> tuple[Sweep, fx.GraphModule]:
        sweep = Sweep(graph_module, of, wrt)
        joint = sweep.run()
        merge_common_subexpressions(joint.graph)
        remove_dead_code(joint.graph)
        return sweep, joint


def _differentiable_outputs(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[int]:
    inputs = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    active = active_nodes(graph_module, [inputs[place] for place in wrt])
    return [i for i, n in enumerate(outputs_of(graph_module.graph)) if n in active]


