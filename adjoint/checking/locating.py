"""Which op, pass or kernel makes a graph's result wrong.

A graph means what the interpreter computes.  Its native program is compiled again with more and
more of its nodes as library calls, until the node is found with which it becomes wrong.  A
derivative is wrong because of its kernels, because of the rule of an op, or because of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from adjoint.capture.direct import capture
from adjoint.checking.comparing import Mismatch, compare, compare_one, tolerance_of
from adjoint.checking.copies import copied_inputs, same_draws
from adjoint.checking.narrowing import guilty_match, guilty_pass
from adjoint.checking.reproduction import of_nodes
from adjoint.compiler import Compiler
from adjoint.errors import SourceLine
from adjoint.graph.copying import copied
from adjoint.graph.derivative import Derivative
from adjoint.graph.descriptors import Saved
from adjoint.graph.evaluation import evaluate
from adjoint.graph.leaves import detached, requires_grad
from adjoint.graph.metadata import (
    callee_of,
    inputs_of,
    output_descriptors,
    output_node,
    outputs_of,
    set_output_descriptors,
    source_of,
)
from adjoint.graph.origins import origins_of
from adjoint.graph.show import show_target
from adjoint.loops.plan import Plan
from adjoint.observing import Sighting
from adjoint.open_types import OpArgument, UserFunction
from adjoint.options import Options
from adjoint.runtime.calling import graph_inputs
from adjoint.torch_private import trees
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.operators import OpOverload


@dataclass(frozen=True)
class Culprit:
    """What makes a result wrong."""

    why: str
    """The op and its values; in further lines the kernel or the pass."""
    op: str = ""
    source: SourceLine | None = None
    reproduction: str = ""


class _Log:
    """Keeps what lowering worked on."""

    def __init__(self) -> None:
        self.passes: list[str] = []
        self.plan: Plan | None = None
        self.graph: fx.GraphModule | None = None

    def given(self, stage: str, order: int, graph_module: fx.GraphModule) -> None:
        if stage not in self.passes:
            self.passes.append(stage)

    def __call__(self, sighting: Sighting) -> None:
        match sighting.value:
            case Plan() as plan:
                self.plan = plan
            case fx.GraphModule() as graph_module:
                self.graph = graph_module
            case _:
                pass


class Lowering:
    """A graph with inputs, whose native program may be wrong."""

    def __init__(
        self, graph_module: fx.GraphModule, inputs: Sequence[object], options: Options
    ) -> None:
        self.graph_module, self.inputs = graph_module, inputs
        self.options = replace(options, check=None, progress=False)
        self.tolerance = tolerance_of(graph_module)
        self.values: dict[fx.Node, object] = {}
        with torch.no_grad(), same_draws():
            self.expected = evaluate(graph_module, copied_inputs(inputs), check=self._note)

    def _note(self, node: fx.Node, args: object, kwargs: object, result: object) -> None:
        self.values[node] = result

    def culprit(self) -> Culprit | None:
        """What makes the program wrong; None: it is right."""
        log = _Log()
        wrong = self._wrong(log=log)
        if wrong is None or log.plan is None or log.graph is None:
            return None
        nodes = list(dict.fromkeys(n for launch in log.plan.launches for n in launch.nodes))
        if self._wrong(called=nodes) is not None:
            return self._pass(log.passes)
        # With the first `low` nodes in kernels the result is right, with `high` it is wrong.
        low, high = 0, len(nodes)
        while high - low > 1:
            middle = (low + high) // 2
            is_wrong = self._wrong(called=nodes[middle:]) is not None
            low, high = (low, middle) if is_wrong else (middle, high)
        return self._op(nodes[high - 1], log.plan, log.graph)

    def _wrong(
        self,
        called: Sequence[str] = (),
        skipped: Sequence[str] = (),
        log: _Log | None = None,
        graph_module: fx.GraphModule | None = None,
        expected: Sequence[object] | None = None,
    ) -> Mismatch | None:
        """How the program differs from the interpreter; None: it does not, or there is none."""
        options = replace(self.options, skip_passes=(*self.options.skip_passes, *skipped))
        compiler = Compiler(options, log or _Log())
        program = compiler.lowered(graph_module or self.graph_module, frozenset(called))
        if program is None or program.plan.streams:
            return None
        with torch.no_grad(), same_draws():
            found = program(copied_inputs(self.inputs))
        wanted = self.expected if expected is None else expected
        return compare(found, wanted, self.tolerance)

    def _pass(self, names: Sequence[str]) -> Culprit | None:
        def is_wrong(skipped: Sequence[str]) -> bool:
            return self._wrong(skipped=skipped) is not None

        return _culprit_of_pass(names, is_wrong)

    def _op(self, name: str, plan: Plan, lowered: fx.GraphModule) -> Culprit:
        """The op that a node of the lowered graph computes, or is a part of."""
        node = next(each for each in lowered.graph.nodes if each.name == name)
        op = str(node.meta.get("part_of", node.target))
        kernels = [launch for launch in plan.launches if name in launch.nodes]
        wanted = set(origins_of(node))
        own = [n for n in self.values if not wanted.isdisjoint(origins_of(n))]
        mismatch = self._value(own[0]) if own else None
        differs = f": {mismatch}" if mismatch is not None else ""
        lines = [f"the first op that differs is {op}{differs}"]
        lines += [
            f"  in kernel {each.title}, which is wrong as soon as it computes this op"
            for each in kernels[:1]
        ]
        members = {n for each in kernels for n in each.nodes}
        placeholders = inputs_of(self.graph_module.graph)
        known = {**dict(zip(placeholders, self.inputs, strict=True)), **self.values}
        script = of_nodes(self._around(own, members, lowered), known, self.graph_module)
        return Culprit("\n".join(lines), op, source_of(node), script)

    def _around(
        self, own: Sequence[fx.Node], members: set[str], lowered: fx.GraphModule
    ) -> list[fx.Node]:
        """The nodes of the graph that show the difference: the op, or all of its kernel."""
        origins = {o for n in lowered.graph.nodes if n.name in members for o in origins_of(n)}
        kernel = [n for n in self.values if not origins.isdisjoint(origins_of(n))]
        return [*own[:1]] if own and self._fails_alone(own[0]) else kernel or [*own]

    def _fails_alone(self, node: fx.Node) -> bool:
        """Whether the op by itself is wrong on the same operands."""
        if not isinstance(node.target, OpOverload):
            return False
        operands = [self._of(each) for each in node.all_input_nodes]
        function, tensors = one_op(node, operands)
        captured = capture(function, *tensors).graph_module
        alone = Lowering(captured, tensors, self.options)
        return alone._wrong() is not None

    def _of(self, node: fx.Node) -> object:
        if node.op != "placeholder":
            return self.values.get(node)
        placeholders = inputs_of(self.graph_module.graph)
        return self.inputs[placeholders.index(node)]

    def _value(self, node: fx.Node) -> Mismatch | None:
        """How the value of a node differs, if it still does when it is a result as well."""
        shown = copied(self.graph_module)
        twin = next(each for each in shown.graph.nodes if each.name == node.name)
        output_node(shown.graph).args = ((*outputs_of(shown.graph), twin),)
        described = output_descriptors(shown.graph)
        set_output_descriptors(shown.graph, (*described, Saved(len(described), False)))
        program = Compiler(self.options).lowered(shown, frozenset())
        if program is None:
            return None
        with torch.no_grad(), same_draws():
            found = program(copied_inputs(self.inputs))
        return compare_one(found[-1], self.values[node], tolerance=self.tolerance)


class Rewriting:
    """A graph with inputs, whose results a pass before lowering may make wrong."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[object],
        wrt: Sequence[int],
        options: Options,
    ) -> None:
        """`wrt`: positions of the inputs that it is differentiated with respect to."""
        self.tolerance = tolerance_of(graph_module)
        self.graph_module, self.inputs, self.wrt = graph_module, inputs, wrt
        self.options = replace(options, check=None, progress=False, target="reference")
        with torch.no_grad(), same_draws():
            self.expected = evaluate(graph_module, copied_inputs(inputs))

    def culprit(self) -> Culprit | None:
        """The pass that makes the results wrong; None: none does."""
        log = _Log()
        self._results((), log)

        def is_wrong(skipped: Sequence[str]) -> bool:
            results = self._results(skipped, _Log())
            found = results[: len(self.expected)]
            return compare(found, self.expected, self.tolerance) is not None

        return _culprit_of_pass(log.passes, is_wrong)

    def _results(self, skipped: Sequence[str], log: _Log) -> Sequence[object]:
        options = replace(self.options, skip_passes=(*self.options.skip_passes, *skipped))
        compiler = Compiler(options, log)
        derivative = None
        if self.wrt:
            derivative = compiler.derivative(self.graph_module, self.wrt, segmented=True)
        with torch.no_grad(), same_draws():
            if derivative is None:
                return compiler.whole(self.graph_module)(copied_inputs(self.inputs))
            found: Sequence[object] = evaluate(derivative.runs, copied_inputs(self.inputs))
            return found


def _culprit_of_pass(
    names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]
) -> Culprit | None:
    found = guilty_pass(names, is_wrong)
    if found is None:
        return None
    name, skipped = found
    match = guilty_match(name, lambda: is_wrong(skipped))
    lines = [f"the pass {name!r} makes it wrong"]
    if match is not None:
        lines.append(f"  match {match[0]}: {match[1]}")
    return Culprit("\n".join(lines), name)


class Differentiation:
    """A graph with inputs and cotangents, whose gradients may be wrong."""

    def __init__(
        self,
        derivative: Derivative,
        wrt: Sequence[int],
        inputs: Sequence[object],
        cotangents: Sequence[tuple[int, object]],
        expected: Sequence[object],
        options: Options,
    ) -> None:
        self.derivative, self.wrt, self.inputs = derivative, tuple(wrt), inputs
        self.cotangents, self.expected = dict(cotangents), list(expected)
        self.tolerance = tolerance_of(derivative.graph_module)
        self.options = replace(options, check=None, progress=False)

    def culprit(self) -> Culprit | None:
        """What makes the gradients wrong."""
        found = self._in_kernels()
        found = found or self._in_rules()
        return found or self._in_passes()

    def _in_kernels(self) -> Culprit | None:
        backward, arguments = self._backward(Compiler(self.options))
        return Lowering(backward, arguments, self.options).culprit()

    def _backward(self, compiler: Compiler) -> tuple[fx.GraphModule, list[object]]:
        graph_module = self.derivative.graph_module
        return backward_of(graph_module, self.inputs, self.wrt, self.cotangents, compiler)

    def _in_rules(self) -> Culprit | None:
        """The op whose derivative is wrong by itself, the last one first."""
        graph_module = self.derivative.graph_module
        values: dict[fx.Node, tuple[object, object, object]] = {}

        def note(node: fx.Node, args: object, kwargs: object, result: object) -> None:
            values[node] = (args, kwargs, result)

        with torch.no_grad(), same_draws():
            evaluate(graph_module, copied_inputs(self.inputs), check=note)
        for node in reversed(values):
            if isinstance(node.target, OpOverload):
                mismatch = self._rule(node, values[node])
                if mismatch is not None:
                    op = show_target(node.target)
                    why = f"the derivative of {op} is wrong: {mismatch}"
                    placeholders = inputs_of(graph_module.graph)
                    known = dict(zip(placeholders, self.inputs, strict=True))
                    known.update({each: values[each][2] for each in values})
                    script = of_nodes([node], known, graph_module, gradients=True)
                    return Culprit(why, op, source_of(node), script)
        return None

    def _rule(self, node: fx.Node, call: tuple[object, object, object]) -> Mismatch | None:
        """How the derivative of an op differs from torch's, for an arbitrary cotangent."""
        args, kwargs, result = call
        if not any(map(_is_real, trees.leaves(result))):
            return None
        function, tensors = _called_with(callee_of(node), args, kwargs)
        leaves = [each.detach().clone().requires_grad_(_is_real(each)) for each in tensors]
        try:
            with torch.enable_grad(), same_draws():
                results = trees.leaves(function(*leaves))
                found = [p for p, each in enumerate(results) if requires_grad(each)]
                cotangents = {place: _cotangent(results[place]) for place in found}
                wrt = [place for place, each in enumerate(leaves) if each.requires_grad]
                if not wrt or not found:
                    return None
                theirs = torch.autograd.grad(
                    [results[place] for place in found],
                    [leaves[place] for place in wrt],
                    list(cotangents.values()),
                    materialize_grads=True,
                )
        except RuntimeError:
            return None  # Torch cannot differentiate it.
        with torch.enable_grad():
            # A result that is a view of an argument would be made outside of the graph.
            captured = capture(lambda *given: _cloned(function(*given)), *tensors)
        inputs = graph_inputs(captured.calling, captured.leaves(tensors))
        compiler = Compiler(self.options)
        graph_module = captured.graph_module
        backward, arguments = backward_of(graph_module, inputs, wrt, cotangents, compiler)
        with torch.no_grad():
            ours = evaluate(backward, arguments)
        ours = [_zeros_for(*pair) for pair in zip(ours, theirs, strict=True)]
        return compare(ours, theirs, tolerance_of(graph_module))

    def _in_passes(self) -> Culprit | None:
        log = _Log()
        self._reference((), log)

        def is_wrong(skipped: Sequence[str]) -> bool:
            found = self._reference(skipped)
            return compare(found, self.expected, self.tolerance) is not None

        return _culprit_of_pass(log.passes, is_wrong)

    def _reference(self, skipped: Sequence[str], log: _Log | None = None) -> list[object]:
        """The gradients, op by op."""
        options = replace(self.options, skip_passes=(*self.options.skip_passes, *skipped))
        backward, arguments = self._backward(Compiler(options, log or _Log()))
        with torch.no_grad():
            found = evaluate(backward, arguments)
        return [_zeros_for(one, other) for one, other in zip(found, self.expected, strict=True)]


def _zeros_for(found: object, expected: object) -> object:
    """A gradient that is zero may also be missing."""
    if found is None and isinstance(expected, torch.Tensor):
        return torch.zeros_like(expected)
    return found


def backward_of(
    graph_module: fx.GraphModule,
    inputs: Sequence[object],
    wrt: Sequence[int],
    cotangents: Mapping[int, object],
    compiler: Compiler,
) -> tuple[fx.GraphModule, list[object]]:
    """The backward graph of a graph, and what it is given for these inputs and cotangents."""
    with compiling():
        derivative = compiler.derivative(graph_module, wrt)
        assert derivative is not None, "it has gradients"
        of = tuple(place for place in derivative.order if place in cotangents)
        backward = compiler.backward(derivative, of, wrt)
    with torch.no_grad(), same_draws():
        outputs = evaluate(derivative.graph_module, copied_inputs(inputs))
    saved = derivative.saved_from(inputs, outputs)
    arguments = [saved[place] for place in derivative.saved_for(backward)]
    for place in derivative.cotangents_of(backward):
        given = cotangents.get(place)
        arguments.append(torch.zeros_like(outputs[place]) if given is None else given)
    return backward.graph_module, [detached(each) for each in arguments]


def _cotangent(result: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(result.shape, generator=generator, dtype=torch.float64).to(result)


_HERE = object()
"""Stands for a tensor among arguments."""


def one_op(
    node: fx.Node, operands: Sequence[OpArgument]
) -> tuple[UserFunction, list[torch.Tensor]]:
    """The op of a node as a function of tensors, and these."""
    known = dict(zip(node.all_input_nodes, operands, strict=True))
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: known[each])
    return _called_with(callee_of(node), args, kwargs)


def _called_with(
    target: Callable[..., object], args: object, kwargs: object
) -> tuple[UserFunction, list[torch.Tensor]]:
    tensors = [each for each in trees.leaves((args, kwargs)) if _is_tensor(each)]
    without = trees.map_leaves(lambda leaf: _HERE if _is_tensor(leaf) else leaf, (args, kwargs))

    def function(*given: torch.Tensor) -> object:
        remaining = iter(given)
        filled = trees.map_leaves(lambda leaf: next(remaining) if leaf is _HERE else leaf, without)
        return target(*filled[0], **filled[1])

    return function, tensors


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(results: object) -> object:
    return trees.map_leaves(lambda each: each.clone() if _is_tensor(each) else each, results)
