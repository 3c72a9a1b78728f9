"""What the runtime asks of the stages: graphs with saved values, backward graphs, executables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes, is_unrecorded_view, nodes_requiring_grad
from adjoint.differentiate.selections import with_finite_factors
from adjoint.differentiate.stages import cut_into_stages, joined, stages_of
from adjoint.differentiate.sweep import Sweep, order_of_program
from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import attempt, differentiating, location_of_graph
from adjoint.graph.copying import copied
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import outputs_of
from adjoint.graph.operations import apply_function, has_backward_per_pattern, in_order, on_copies
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.observing import Observer, unobserved
from adjoint.optimize.cse import merge_common_subexpressions
from adjoint.optimize.masks import narrow_masks
from adjoint.options import Options
from adjoint.partition.opening import close_softmax, open_softmax
from adjoint.partition.split import Backward, Forward, NotSaved, Split, narrowed
from adjoint.programs import Programs, evaluate_taking
from adjoint.progress import PROGRESS
from adjoint.rules.registry import COMPOSITIONS
from adjoint.runtime.bridge import Compiled
from adjoint.runtime.calling import Graph
from adjoint.runtime.recorded import Executable, Recorded, Reversed, Stages
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import DATA_DEPENDENT, FakeTensor, fake_mode_of
from adjoint.torch_private.modes import is_traceable_wrapper_subclass, isolated


class Build:
    """Makes what the autograd bridge needs, when it needs it."""

    def __init__(
        self, options: Options, saw: Observer | None = None, told: set[str] | None = None
    ) -> None:
        """`told`: the failures that the user has been told of, if all is made for one program."""
        self.options = options
        self.saw: Observer = saw or (PROGRESS if options.progress else unobserved)
        self._told = told

    def during(
        self, doing: str, graph_module: fx.GraphModule
    ) -> contextlib.AbstractContextManager[None]:
        """A context in which this is done to a graph."""
        if not self.options.progress:
            return contextlib.nullcontext()
        return PROGRESS.during(doing, lambda: location_of_graph(graph_module).source)

    def program(self, graph_module: fx.GraphModule) -> Graph:
        """The graph, ready to run inside an ordinary program."""
        with differentiating(graph_module):
            if _left_to_autograd(graph_module):
                return partial(evaluate, graph_module)
            return Compiled(graph_module, self)

    @property
    def falls_back(self) -> bool:
        """What cannot be differentiated is left to eager autograd."""
        return self.options.unsupported == "eager"

    def record(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], in_stages: bool = False
    ) -> Recorded | None:
        """The graph with saved values; None if nothing it returns requires grad for `wrt`.

        `in_stages`: results can be differentiated with respect to each other.
        """
        with self._differentiating(graph_module), _assuming(graph_module):
            return self._record(graph_module, wrt, in_stages)

    def _record(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], in_stages: bool
    ) -> Recorded | None:
        results = _differentiable_outputs(graph_module, wrt)
        requiring = _requiring_outputs(graph_module, wrt)
        if not results and not requiring:
            return None
        returned = len(outputs_of(graph_module.graph))
        cuts: tuple[int, ...] = ()
        # Gradients are nodes of autograd's graph by what they are gradients of.
        if in_stages and order_of_program(graph_module.graph) == 0:
            graph_module, cuts = cut_into_stages(graph_module, wrt)
            count = len(graph_module.graph.find_nodes(op="placeholder"))
            wrt = [*wrt, *range(count - len(cuts), count)]
            results = _differentiable_outputs(graph_module, wrt) if cuts else results
        sweep, joint = self._joint_where_it_can(graph_module, results, wrt)
        opened, parts = open_softmax(joint.graph)
        sweep.keep_copies(opened, joint.graph)
        split = Split(joint, sweep.order)
        # A backward graph runs here only to be differentiated again, in any of several ways.
        also = split.primals if sweep.order > 1 else sweep.several_results()
        forward = split.forward(also)
        reached = {sweep.copies.get(node) for node in sweep.reached} | parts
        while sweep.order == 1 and self._leaves_out(forward, wrt, reached):
            more, further = self._also_needed(forward, wrt)
            if further <= reached:
                break
            also, reached = [*also, *more], reached | further
            forward = split.forward(also)
        backward = split.backward(forward.nodes, forward.inputs, forward.outputs)
        executed = forward.graph_module
        primal = close_softmax(executed)[0] if parts else executed
        differentiable = frozenset(_differentiable_outputs(primal, wrt))
        stages = None
        if cuts:
            stages = Stages(cuts, *stages_of(primal, wrt, cuts))
            executed = joined(executed, cuts)
            merge_common_subexpressions(executed.graph)
        return Recorded(
            primal,
            returned,
            forward.inputs,
            forward.outputs,
            differentiable,
            _reversed(sweep, backward, sweep.of),
            frozenset(requiring) - differentiable,
            executed,
            stages,
        )

    def reverse(self, recorded: Recorded, of: Sequence[int], wrt: Sequence[int]) -> Reversed:
        """The backward graph for cotangents of the outputs `of`."""
        if tuple(of) == recorded.first.of:
            return recorded.first
        with self._differentiating(recorded.graph_module):
            sweep, joint = self._joint(recorded.graph_module, of, wrt)
            open_softmax(joint.graph)
            # What a softmax is made of is what was saved of it.
            merge_common_subexpressions(joint.graph)
            split = Split(joint, sweep.order)
            nodes = [node for node, _ in split.results]
            try:
                backward = split.backward(nodes, recorded.saved_inputs, recorded.saved_outputs)
            except NotSaved:
                # What all cotangents need was saved, and those that are missing are zeros.
                if not set(of) <= set(recorded.first.of):
                    raise
                return recorded.first
            return _reversed(sweep, backward, of)

    def narrow(self, made: Reversed, places: frozenset[int]) -> Reversed:
        """The same without the gradients that are not in `places`."""
        return replace(
            made, graph_module=narrowed(made.graph_module, places), zeros=made.zeros & places
        )

    def transpose(self, backward: fx.GraphModule, saved: int) -> tuple[fx.GraphModule, list[int]]:
        """The derivative along inputs, given the backward graph, which is linear in its tangents.

        `backward` takes `saved` values, then tangents.  Returns a graph from the same inputs and
        tangents of the primal inputs to tangents of the outputs, and which inputs matter to it.
        Its value does not depend on the tangents that `backward` takes: zeros will do.
        """
        with self._differentiating(backward):
            gradients = outputs_of(backward.graph)
            present = [i for i, node in enumerate(gradients) if isinstance(node, fx.Node)]
            inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
            with isolated(), _assuming(backward):
                linear = with_finite_factors(backward, inputs[saved:])
            sweep, joint = self._joint(linear, present, range(saved, len(inputs)))
            return Split(joint, sweep.order).transposed(), present

    def load(self, graph_module: fx.GraphModule) -> Executable:
        """The graph, ready to run."""
        with self.during("lowering", graph_module):
            made = attempt(lambda: self._load(graph_module), graph_module, reported=self._told)
        return made or partial(evaluate_taking, graph_module)

    @contextlib.contextmanager
    def _differentiating(self, graph_module: fx.GraphModule) -> Iterator[None]:
        with differentiating(graph_module), self.during("differentiating", graph_module):
            yield

    def _load(self, graph_module: fx.GraphModule) -> Executable | None:
        narrow_masks(graph_module.graph)
        if self.options.target == "reference":
            return None
        return Programs(
            graph_module,
            self.options,
            self.saw,
            self.during,
            self._told,
        )

    def in_torch(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The same graph; ops that torch cannot differentiate are composed of ops that it can."""
        return _composed(graph_module)

    def _leaves_out(self, forward: Forward, wrt: Sequence[int], reached: Set[Any]) -> bool:
        """Some saved value has a derivative, and no sweep that was looked at has `reached` it."""
        nodes, active = forward.nodes, _differentiable_outputs(forward.graph_module, wrt)
        return any(place >= forward.results and nodes[place] not in reached for place in active)

    def _also_needed(
        self, forward: Forward, wrt: Sequence[int]
    ) -> tuple[list[fx.Node], set[fx.Node]]:
        """What the derivative of the saved values themselves needs, and what it reaches."""
        primal, made_of = close_softmax(forward.graph_module)
        of = _differentiable_outputs(primal, wrt)
        sweep, joint = self._joint_where_it_can(primal, of, wrt)
        # A sweep expands its graph, unless that has been expanded before.
        origins = {
            copy: forward.origins[made_of[node]]
            for node, copy in sweep.copies.items()
            if node in made_of and made_of[node] in forward.origins
        }
        needed = [*Split(joint, sweep.order).needed(), *sweep.several_results()]
        reached = {sweep.copies.get(node) for node in sweep.reached}
        return (
            [origins[node] for node in needed if node in origins],
            {origins[node] for node in reached if node in origins},
        )

    def _joint_where_it_can(
        self, graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
    ) -> tuple[Sweep, fx.GraphModule]:
        """The joint graph for those of the outputs `of` that have a derivative.

        For the others there is an error when a cotangent arrives, as there is in eager torch.
        """
        try:
            return self._joint(graph_module, of, wrt)
        except DifferentiationError as error:
            depends_on_data = isinstance(error.__cause__, DATA_DEPENDENT)
            kept = [] if depends_on_data else [n for n in of if self._can(graph_module, n, wrt)]
            if not kept:
                raise
        return self._joint(graph_module, kept, wrt)

    def _can(self, graph_module: fx.GraphModule, output: int, wrt: Sequence[int]) -> bool:
        """The output can be differentiated."""
        try:
            self._joint(graph_module, [output], wrt)
        except DifferentiationError:
            return False
        return True

    def _joint(
        self, graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
    ) -> tuple[Sweep, fx.GraphModule]:
        sweep = Sweep(graph_module, of, wrt)
        with isolated(), _assuming(graph_module):
            joint = sweep.run()
        merged = merge_common_subexpressions(joint.graph)
        remove_dead_code(joint.graph)
        sweep.keep_copies(merged, joint.graph)
        return sweep, joint


def _composed(graph_module: fx.GraphModule) -> fx.GraphModule:
    made = copied(graph_module)
    for node in made.graph.nodes:
        node.target = COMPOSITIONS.get(node.target, node.target)
    for name, body in subgraphs_of(graph_module).items():
        setattr(made, name, _composed(body))
    return made


@contextlib.contextmanager
def _assuming(graph_module: fx.GraphModule) -> Iterator[None]:
    """Sizes are told apart only where they must be, and what is then assumed is written down."""
    shape_env = fake_mode_of(graph_module).shape_env
    with (
        general_shapes(),
        symbols.allow_data_dependent_sizes(shape_env),
        symbols.assumptions(shape_env),
    ):
        yield


def _reversed(sweep: Sweep, backward: Backward, of: Sequence[int]) -> Reversed:
    returned = outputs_of(backward.graph_module.graph)
    zeros = [i for i, gradient in enumerate(returned) if gradient is None]
    return Reversed(
        backward.graph_module,
        tuple(of),
        backward.inputs,
        backward.outputs,
        frozenset(sweep.depended_on(zeros)) if zeros else frozenset(),
    )


def _differentiable_outputs(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[int]:
    inputs = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    active = active_nodes(graph_module, [inputs[place] for place in wrt])
    return [i for i, n in enumerate(outputs_of(graph_module.graph)) if n in active]


def _requiring_outputs(graph_module: fx.GraphModule, wrt: Sequence[int]) -> list[int]:
    """Outputs that require grad where views were made under `no_grad`; else they are the above."""
    if not any(is_unrecorded_view(node) for node in graph_module.graph.nodes):
        return []
    inputs = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    requiring = nodes_requiring_grad(graph_module, [inputs[place] for place in wrt])
    return [i for i, n in enumerate(outputs_of(graph_module.graph)) if n in requiring]


def _left_to_autograd(graph_module: fx.GraphModule) -> bool:
    """Eager autograd differentiates the graph, op by op, while it runs.

    So it is for what has no rule yet: effects, hooks on saved tensors, tensor subclasses, sparse
    gradients; for functions that may be differentiated once, which eager refuses only when the
    second derivative is asked for; and for those that are told which cotangents are missing, which
    eager calls also when all are.
    """
    return any(
        node.target in (on_copies, in_order)
        or (
            node.target is apply_function and (bool(node.args[3]) or has_backward_per_pattern(node))
        )
        or "hooks" in node.meta
        or _has_sparse_gradient(node)
        or any(_is_subclass(leaf) for leaf in trees.leaves(node.meta.get("val")))
        for node in graph_module.graph.nodes
    ) or any(map(_left_to_autograd, subgraphs_of(graph_module).values()))


def _has_sparse_gradient(node: fx.Node) -> bool:
    """An embedding for whose gradient the user wants the rows that were read, and no others."""
    place = _SPARSE.get(node.target)
    return place is not None and len(node.args) > place and bool(node.args[place])


_SPARSE: dict[Any, int] = {
    torch.ops.aten.embedding.default: 4,
    torch.ops.aten._embedding_bag.default: 5,
}


def _is_subclass(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor)
        and is_traceable_wrapper_subclass(value)
    )
