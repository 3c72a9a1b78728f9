"""The reverse sweep: a graph becomes its joint graph, with tangents in and gradients out.

The forward nodes are copied; then, from the last to the first, each node that has a cotangent and
leads to an input of interest gives cotangents to its arguments by its rule.  A missing cotangent is
a zero: it is never a tensor, and a node whose cotangents are all missing has no reverse region.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Container, Sequence
from dataclasses import replace

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.bodies import LoopCall, reverse_cond, reverse_loop
from adjoint.differentiate.checks import FormulaTracer, where_checks_hold
from adjoint.differentiate.copying import OutsideTensor, inline, refuse_outside
from adjoint.differentiate.cotangents import Cotangents
from adjoint.differentiate.dependence import entangled, visited_by_autograd
from adjoint.differentiate.expansion import expand
from adjoint.errors import DifferentiationError
from adjoint.failing import call_user_code, works_on
from adjoint.graph.boundary import is_known_when_run, is_raised_in_user_code
from adjoint.graph.copying import copy_node
from adjoint.graph.derivative import Joint, order_of_graph
from adjoint.graph.descriptors import DifferentiableOutput, Gradient, Tangent
from adjoint.graph.metadata import (
    CheckpointRegion,
    GradOf,
    Mode,
    arguments_of,
    callee_of,
    derivative_order,
    descriptor_of,
    entry_mode,
    evaluated_in,
    has_value,
    input_descriptors,
    inputs_of,
    output_descriptors,
    outputs_of,
    region_of,
    set_descriptor,
    set_mode,
    set_output_descriptors,
    set_value,
    source_of,
    value_of,
    value_or_none,
)
from adjoint.graph.operations import LOOPS, has_bodies, with_backward
from adjoint.graph.origins import begin, origins_of
from adjoint.graph.sizes import assuming
from adjoint.open_types import OpArgument, TorchValue
from adjoint.rules.derived import pull_back
from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, VJPS, Rule
from adjoint.strides import span_of
from adjoint.torch_private import trees
from adjoint.torch_private.fake import fake_mode_of
from adjoint.torch_private.modes import enable_python_dispatcher, isolated
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import as_under
from adjoint.trace.subgraph import finish_graph


def differentiate(graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]) -> Joint:
    """The joint graph: inputs and tangents of the outputs `of` to outputs and gradients of `wrt`.

    `of` and `wrt` are positions among the graph's outputs and inputs.  A gradient that is zero for
    all tangents is the constant None.
    """
    sweep = Sweep(graph_module, of, wrt)
    with isolated(), assuming(graph_module):
        joint = sweep.run()
    gradients = outputs_of(joint.graph)[-len(wrt) :] if wrt else ()
    missing = [wrt[place] for place, gradient in enumerate(gradients) if gradient is None]
    visited = visited_by_autograd(sweep.primal, of, sweep.active, sweep.given) if missing else ()
    described = input_descriptors(sweep.primal.graph)
    return Joint(
        joint,
        sweep.order,
        frozenset(origin for node in sweep.cotangents.reached for origin in origins_of(node)),
        frozenset(entangled(sweep.primal.graph, sweep.active)),
        frozenset(described[place] for place in missing if sweep.inputs[place] in visited),
    )


def differentiate_where_possible(
    graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int], some: bool = False
) -> Joint:
    """The joint graph for those of the outputs `of` that have a derivative.

    A cotangent of any other output is an error when it arrives, as in eager.  `some`: raise at once
    if no output has a derivative.
    """
    try:
        return differentiate(graph_module, of, wrt)
    except DifferentiationError as error:
        if is_known_when_run(error.__cause__):
            raise
        kept = [n for n in of if _is_possible(graph_module, n, wrt)]
        # Eager can run a derivative of the user's that cannot be traced.
        if not kept and (some or is_raised_in_user_code(error.__cause__)):
            raise
    return differentiate(graph_module, kept, wrt)


def _is_possible(graph_module: fx.GraphModule, output: int, wrt: Sequence[int]) -> bool:
    try:
        differentiate(graph_module, [output], wrt)
    except DifferentiationError:
        return False
    return True


def _body_differentiated(
    body: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
) -> tuple[fx.GraphModule, Sequence[object]]:
    """The joint graph of a body, and the sizes of the enclosing graph that are its last inputs."""
    sweep = Sweep(body, of, wrt)
    scope = sweep.tracer.scope
    scope.emitter.lift_number = scope.lift_number
    return sweep.run(), scope.lifted


class Sweep:
    """One reverse sweep."""

    def __init__(self, graph_module: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]) -> None:
        graph_module = expand(graph_module, wrt)
        self.primal = graph_module
        self.inputs = inputs_of(graph_module.graph)
        self.of, self.wrt = list(of), list(wrt)
        self.tracer = FormulaTracer(fake_mode_of(graph_module), refuse_outside)
        self.copies: dict[fx.Node, fx.Node] = {}
        self.given: dict[fx.Node, list[fx.Node]] = {}
        """For ops with several results: the arguments that got a cotangent."""
        self.written: set[fx.Node] = set()
        """Reverse nodes copied from a custom backward, which keep the modes the user wrote."""
        self.active = active_nodes(graph_module, wrt)
        self.cotangents = Cotangents(self.tracer, self.active)
        self.order = 1 + order_of_graph(graph_module.graph)

    @works_on("node")
    def run(self) -> fx.GraphModule:
        """The joint graph."""
        self._copy_forward()
        emitter = self.tracer.emitter
        outputs, described = outputs_of(self.primal.graph), output_descriptors(self.primal.graph)
        with self.tracer.fake_mode, enable_python_dispatcher(), self.tracer, torch.no_grad():
            for place in self.of:
                descriptor = described[place]
                assert isinstance(descriptor, DifferentiableOutput)
                self._seed(outputs[place], descriptor)
            for node in reversed(self.primal.graph.nodes):
                if node.op == "call_function":
                    self._pull_back(node)
            gradients = [self._gradient(self.inputs[place]) for place in self.wrt]
        for node in emitter.graph.nodes:
            if derivative_order(node) == self.order and node not in self.written:
                # Formulas of torch may compute under `no_grad`; their results are differentiable.
                set_mode(node, Mode())
        emitter.graph.output((*(self.copies.get(node, node) for node in outputs), *gradients))
        entering = [descriptor_of(self.inputs[place]) for place in self.wrt]
        new = [Gradient(each, order=self.order) for each in entering]  # type: ignore[arg-type]
        set_output_descriptors(emitter.graph, (*described, *new))
        return finish_graph(emitter, entry_mode(self.primal))

    def _seed(self, node: fx.Node, descriptor: DifferentiableOutput) -> None:
        """The tangent of an output is the first cotangent of its node."""
        tangent = self.tracer.emitter.placeholder("tangent", self._like_cotangent(value_of(node)))
        set_descriptor(tangent, Tangent(descriptor, order=self.order))
        value = value_of(tangent)
        self.tracer.scope.new(value, tangent)
        self.cotangents.add(node, value)

    def _like_cotangent(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor with the layout of a cotangent of `value`: dense, also if `value` has gaps.

        A program copies an input whose strides it does not expect, and the copy would have the
        gaps.
        """
        numbers = [*value.shape, *value.stride()] if value.layout is torch.strided else []
        # Symbols first: to compare one that depends on data with 0 is an error.
        if not all(isinstance(each, int) for each in numbers) or 0 in numbers:
            return value
        if span_of(value.shape, value.stride()) == value.numel():
            return value
        with self.tracer.untraced():
            return torch.empty_like(value, memory_format=torch.preserve_format)

    def _copy_forward(self) -> None:
        emitter = self.tracer.emitter
        emitter.attributes.update(_attributes(self.primal))
        for node in self.primal.graph.nodes:
            if node.op == "output":
                continue
            self.copies[node] = copy = copy_node(emitter.graph, node, self.copies.__getitem__)
            self._know(node, copy)
        emitter.recount_placeholders()

    def _know(self, node: fx.Node, copy: fx.Node) -> None:
        """Rules that use the fake value of `node` refer to `copy` from now on."""
        taken = {user.args[1] for user in node.users if user.target is operator.getitem}
        self._know_results(copy, taken)
        self.tracer.emitter.bind_symbols(copy, value_or_none(copy))

    def _know_results(self, copy: fx.Node, taken: Container[object] = ()) -> None:
        """Let fake tensors among the results of `copy` stand for them, except those `taken`.

        Rules may use all results of an op, also those that the program does not use.
        """
        value = value_or_none(copy)
        if isinstance(value, (tuple, list)):
            for index, each in enumerate(value):
                if index not in taken and isinstance(each, (torch.Tensor, tuple, list)):
                    self._know_results(self.tracer.emitter.item(copy, index))
        elif isinstance(value, torch.Tensor):
            self.tracer.scope.new(value, copy)
            node, path = copy, list[int]()
            while node.target is operator.getitem:
                node, index = arguments_of(node)
                path.insert(0, index)
                part = value_of(node)
                for index in path:
                    part = part[index]
                self.tracer.scope.new(part, copy)

    # Cotangents -------------------------------------------------------------------------------

    def _gradient(self, node: fx.Node) -> fx.Node | None:
        cotangent = self.cotangents.of(node)
        return None if cotangent is None else self.tracer.node(cotangent)

    # Rules ------------------------------------------------------------------------------------

    @works_on("node")
    def _pull_back(self, node: fx.Node) -> None:
        cotangent = self.cotangents.take(node)
        if cotangent is None or node not in self.active or node.target in NON_DIFFERENTIABLE:
            return
        emitter = self.tracer.emitter
        emitter.line = source_of(node)
        region = _without_policy(region_of(node))
        emitter.grad_of = GradOf(node.name, str(node.target), self.order)
        out = value_of(node)
        args, kwargs = self._values((node.args, node.kwargs))
        within = contextlib.nullcontext() if region is None else evaluated_in(region)
        try:
            with as_under(Mode()), within:
                rule = VJPS.get(node.target)
                if has_bodies(node):
                    self._reverse_bodies(node, cotangent, args)
                elif node.target is with_backward:
                    self._reverse_function(node, cotangent)
                elif rule is not None:
                    gradients = call_user_code(rule, cotangent, out, *args, **kwargs)
                    self._distribute(node, rule, gradients)
                else:
                    self._derive(node, cotangent, out, args, kwargs)
        except OutsideTensor as error:
            raise DifferentiationError(
                str(node.target),
                self.order,
                "its derivative uses a tensor that is neither an argument nor a saved tensor",
                emitter.line,
                "pass the tensor to the op as an argument",
            ) from error

    def _values(self, tree: OpArgument) -> TorchValue:
        def value(node: fx.Node) -> TorchValue:
            if node.op == "get_attr" and not has_value(node):
                return getattr(self.primal, str(node.target))
            return value_of(node)

        return fx.map_arg(tree, value)

    def _distribute(self, node: fx.Node, rule: Rule, gradients: object) -> None:
        if not isinstance(gradients, tuple):
            kind = "a tensor" if isinstance(gradients, torch.Tensor) else type(gradients).__name__
            raise self._error(node, f"its rule {rule.__name__} returned {kind}, not a tuple")
        if len(gradients) > len(node.args):
            raise self._error(
                node,
                f"its rule {rule.__name__} returned {len(gradients)} cotangents "
                f"for {len(node.args)} arguments",
            )
        for argument, gradient in zip(node.args, gradients, strict=False):
            if gradient is None:
                continue
            if isinstance(argument, (list, tuple)):
                for each, part in zip(argument, gradient, strict=True):
                    self._give(node, rule, each, part)
            else:
                self._give(node, rule, argument, gradient)

    def _give(self, node: fx.Node, rule: Rule, argument: object, gradient: TorchValue) -> None:
        if not (isinstance(argument, fx.Node) and argument in self.active):
            return
        gradient = call_user_code(gradient) if callable(gradient) else gradient
        self._note(node, argument, gradient)
        try:
            self.cotangents.add(argument, gradient)
        except RuntimeError as error:
            raise self._error(
                node,
                f"its rule {rule.__name__} returned a cotangent of shape {list(gradient.shape)} "
                f"for an argument of shape {list(value_of(argument).shape)}",
            ) from error

    def _reverse_bodies(
        self, node: fx.Node, cotangents: Sequence[object], args: Sequence[TorchValue]
    ) -> None:
        """A branch or a loop of reverse bodies."""
        out, nodes = value_of(node), arguments_of(node)
        operands: Sequence[OpArgument]
        if node.target in LOOPS:
            form = LOOPS[node.target]
            operands = form.operands(nodes)
            places = [place for place, each in enumerate(operands) if each in self.active]
            init, xs, others = (form.part(args, each) for each in (form.init, form.xs, form.others))
            loop = LoopCall(args[form.body], init, xs, others, out)
            gradients = reverse_loop(self.tracer, _body_differentiated, loop, cotangents, places)
        else:
            pred, true, false, values = args
            operands = nodes[3]
            places = [place for place, each in enumerate(operands) if each in self.active]
            gradients = reverse_cond(
                self.tracer,
                _body_differentiated,
                (true, false),
                pred,
                values,
                out,
                cotangents,
                places,
            )
        for place, gradient in gradients.items():
            if isinstance(operands[place], fx.Node):
                self.cotangents.add(operands[place], gradient)

    def _reverse_function(self, node: fx.Node, cotangents: Sequence[torch.Tensor | None]) -> None:
        """The backward half of a custom function, which takes zeros for missing cotangents."""
        body, _, results, saved, *operands = arguments_of(node)
        out = value_of(node)
        complete = [
            torch.zeros_like(each) if cotangent is None else cotangent
            for each, cotangent in zip(out, cotangents, strict=True)
        ]
        given = {self.tracer.node(each): each for each in complete}
        places = {each: index for index, each in enumerate(results)}
        kept = [
            self.tracer.node(out[places[each]]) if each in places else self.copies.get(each, each)
            for each in saved
        ]
        backward = getattr(self.primal, str(body.target))
        entering = dict(zip(inputs_of(backward.graph), [*given, *kept], strict=True))
        gradients = inline(backward, entering, self._copy_reverse)
        for operand, gradient in zip(operands, gradients, strict=True):
            if isinstance(operand, fx.Node) and isinstance(gradient, fx.Node):
                found = given.get(gradient, value_of(gradient))
                try:
                    self.cotangents.add(operand, found)
                except RuntimeError as error:
                    assert found is not None
                    raise DifferentiationError(
                        "an autograd.Function",
                        self.order,
                        f"its backward returned an invalid gradient: of shape {list(found.shape)} "
                        f"for an argument of shape {list(value_of(operand).shape)}",
                        source_of(node),
                        "return gradients of the arguments' shapes",
                    ) from error

    def _copy_reverse(
        self, owner: fx.GraphModule, node: fx.Node, values: dict[fx.Node, object]
    ) -> fx.Node:
        emitter = self.tracer.emitter
        if node.op == "get_attr":
            copy = emitter.attribute(str(node.target), getattr(owner, str(node.target)))
        else:
            copy = copy_node(emitter.graph, node, values.__getitem__)
        copy.meta = {**node.meta, "grad_of": emitter.grad_of, "order": self.order}
        begin(copy)  # Computed here from other values: a value of its own.
        if has_value(node):
            # A fake value belongs to one node, and a body may be copied to several places.
            set_value(copy, emitter.snapshot(value_of(node)))
        self.written.add(copy)
        self._know(node, copy)
        return copy

    def _derive(
        self,
        node: fx.Node,
        cotangent: object,
        out: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        arguments = [n for n in node.all_input_nodes if n in self.active]
        active = [value_of(n) for n in arguments]
        cotangents = trees.leaves(cotangent)
        function = COMPOSITIONS.get(node.target) or callee_of(node)

        def formula() -> dict[int, torch.Tensor]:
            if function is node.target and isinstance(function, OpOverload):
                self.tracer.answer = (function, out)
            try:
                return pull_back(function, args, kwargs, active, self._twin, cotangents)
            finally:
                self.tracer.answer = None

        try:
            gradients = where_checks_hold(self.tracer, formula)
        except Exception as error:
            if is_raised_in_user_code(error):
                said = f"its derivative raised {type(error).__name__}: {error}"
                raise self._error(node, said) from error
            if not isinstance(error, RuntimeError | NotImplementedError):
                raise
            raise self._error(node, str(error).splitlines()[0]) from error
        for argument in arguments:
            gradient = gradients.get(id(value_of(argument)))
            self._note(node, argument, gradient)
            self.cotangents.add(argument, gradient)

    def _note(self, node: fx.Node, argument: fx.Node, gradient: object) -> None:
        if isinstance(value_of(node), (tuple, list)) and gradient is not None:
            self.given.setdefault(node, []).append(argument)

    def _twin(self, value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        with self.tracer.paused(), torch.no_grad():
            twin = value.detach()
        twin.requires_grad_(requires_grad)
        self.tracer.scope.new(twin, self.tracer.node(value))
        return twin

    def _error(self, node: fx.Node, why: str) -> DifferentiationError:
        return DifferentiationError(str(node.target), self.order, why, source_of(node))


def _without_policy(region: CheckpointRegion | None) -> CheckpointRegion | None:
    """The region of a derivative: a policy is about the operators of the program alone."""
    return region if region is None or not region.policy else replace(region, policy="")


def _attributes(module: fx.GraphModule) -> dict[str, object]:
    names = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    return {name: getattr(module, name) for name in names}
