"""Which op, pass or kernel makes a graph's result wrong.

The interpreter defines the right result.  A bisection compiles the graph with fewer and fewer of
its nodes in kernels, the others as library calls, and finds the node with which the result becomes
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from adjoint.capture.direct import capture
from adjoint.checking.comparing import Mismatch, compare, compare_one, tolerance_of
from adjoint.checking.copies import copied_inputs, same_draws
from adjoint.checking.narrowing import fewest_wrong, guilty_match, guilty_pass
from adjoint.checking.reproduction import of_nodes
from adjoint.compiler import Compiler
from adjoint.errors import SourceLine
from adjoint.graph.copying import copied
from adjoint.graph.descriptors import Saved
from adjoint.graph.evaluation import evaluate
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
from adjoint.loops.plan import Plan
from adjoint.observing import Sighting
from adjoint.open_types import OpArgument, UserFunction
from adjoint.options import Options
from adjoint.torch_private import trees
from adjoint.torch_private.operators import OpOverload


@dataclass(frozen=True)
class Culprit:
    """What makes a result wrong."""

    why: str
    """The op and its values; in further lines the kernel or the pass."""
    op: str = ""
    source: SourceLine | None = None
    reproduction: str = ""


class Log:
    """An observer that keeps the names of passes, the last graph and the plan."""

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


class KernelSearch:
    """The search for the op, in a graph with inputs, that makes its native program wrong."""

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
        log = Log()
        wrong = self._wrong(log=log)
        if wrong is None or log.plan is None or log.graph is None:
            return None
        nodes = list(dict.fromkeys(n for launch in log.plan.launches for n in launch.nodes))
        if self._wrong(called=nodes) is not None:
            return self._pass(log.passes)
        in_kernels = fewest_wrong(
            len(nodes), lambda count: self._wrong(called=nodes[count:]) is not None
        )
        return self._op(nodes[in_kernels - 1], log.plan, log.graph)

    def _wrong(
        self,
        called: Sequence[str] = (),
        skipped: Sequence[str] = (),
        log: Log | None = None,
        graph_module: fx.GraphModule | None = None,
        expected: Sequence[object] | None = None,
    ) -> Mismatch | None:
        """How the program differs from the interpreter; None: it does not, or there is none."""
        options = replace(self.options, skip_passes=(*self.options.skip_passes, *skipped))
        compiler = Compiler(options, log or Log())
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

        return culprit_of_pass(names, is_wrong)

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
        alone = KernelSearch(captured, tensors, self.options)
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


class PassSearch:
    """The search for the pass, before lowering, that makes the results of a graph wrong."""

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
        log = Log()
        self._results((), log)

        def is_wrong(skipped: Sequence[str]) -> bool:
            results = self._results(skipped, Log())
            found = results[: len(self.expected)]
            return compare(found, self.expected, self.tolerance) is not None

        return culprit_of_pass(log.passes, is_wrong)

    def _results(self, skipped: Sequence[str], log: Log) -> Sequence[object]:
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


def culprit_of_pass(
    names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]
) -> Culprit | None:
    """The pass, and in it the match, that makes a result wrong.

    `is_wrong`: whether the result is wrong if these passes are skipped.
    """
    found = guilty_pass(names, is_wrong)
    if found is None:
        return None
    name, skipped = found
    match = guilty_match(name, lambda: is_wrong(skipped))
    lines = [f"the pass {name!r} makes it wrong"]
    if match is not None:
        lines.append(f"  match {match[0]}: {match[1]}")
    return Culprit("\n".join(lines), name)


_HERE = object()
"""Stands for a tensor among arguments."""


def one_op(
    node: fx.Node, operands: Sequence[OpArgument]
) -> tuple[UserFunction, list[torch.Tensor]]:
    """The op of a node as a function of tensors, and these."""
    known = dict(zip(node.all_input_nodes, operands, strict=True))
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: known[each])
    return called_with(callee_of(node), args, kwargs)


def called_with(
    target: Callable[..., object], args: object, kwargs: object
) -> tuple[UserFunction, list[torch.Tensor]]:
    """A call as a function of the tensors among its arguments, and these."""
    tensors = [each for each in trees.leaves((args, kwargs)) if _is_tensor(each)]
    without = trees.map_leaves(lambda leaf: _HERE if _is_tensor(leaf) else leaf, (args, kwargs))

    def function(*given: torch.Tensor) -> object:
        remaining = iter(given)
        filled = trees.map_leaves(lambda leaf: next(remaining) if leaf is _HERE else leaf, without)
        return target(*filled[0], **filled[1])

    return function, tensors


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
