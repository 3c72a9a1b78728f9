"""A graph and its derivatives, to the order asked, as records and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch
from torch import fx

from adjoint.compiler import Compiler
from adjoint.differentiate.activity import outputs_requiring_grad, outputs_with_derivative
from adjoint.differentiate.eager import is_left_to_eager
from adjoint.errors import ExportError, SourceLine
from adjoint.exported.file import PlanText
from adjoint.exported.records import BackwardRecord, GraphRecord, NodeRecord
from adjoint.exporting.code import Code
from adjoint.forms.form import Unwritable
from adjoint.forms.plans import without_bodies, written_plan
from adjoint.graph.boundary import location_of_graph, warn_of_fallback
from adjoint.graph.derivative import Backward, Derivative
from adjoint.graph.descriptors import Gradient, Parameter, SavedInput
from adjoint.graph.metadata import inputs_of, value_or_none
from adjoint.loops.plan import HeldConstant, LibraryCall, Plan
from adjoint.target import Target

# Outputs, and sets of saved values, that have a backward graph of their own.
MAX_GROUPS = 8


class Constants:
    """The constants of plans, with names that are unique in the file."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.lines: dict[SourceLine, int] = {}

    def held(self, name: str) -> object:
        """The constant of this name; None: there is none."""
        return self.tensors.get(name)

    def named(self, value: object) -> HeldConstant:
        """A constant of the file, with its name there."""
        if not isinstance(value, torch.Tensor):
            raise Unwritable(f"a constant of type {type(value).__name__}")
        for name, tensor in self.tensors.items():
            if tensor is value:
                return HeldConstant(name, tensor)
        name = f"constant.{len(self.tensors)}"
        self.tensors[name] = value
        return HeldConstant(name, value)


class Exporting:
    """Compiles a graph and its derivatives into plans and machine code."""

    def __init__(self, compiler: Compiler, target: Target, code: Code) -> None:
        self.compiler = compiler
        self.target = target
        self.code = code
        self.constants = Constants()
        self.plans: list[PlanText] = []
        self.assumed: dict[sympy.Basic, None] = {}

    def graph(self, graph_module: fx.GraphModule, wrt: Sequence[int], orders: int) -> GraphRecord:
        """A graph with its derivatives with respect to the inputs `wrt`, `orders` times."""
        if is_left_to_eager(graph_module):
            raise ExportError(
                f"{location_of_graph(graph_module)}\n  is left to eager autograd, and a file has "
                "no eager program"
            )
        plain = self._program(graph_module, is_whole=True)
        if not orders:
            return GraphRecord(plain, None, bool(wrt))
        derivative = self.compiler.derivative(graph_module, tuple(wrt), segmented=True)
        if derivative is None:
            return GraphRecord(plain, None, False)
        forward = self._program(derivative.runs, is_whole=False)
        return GraphRecord(plain, self._node(derivative, tuple(wrt), forward, orders), False)

    def _node(
        self, derivative: Derivative, wrt: tuple[int, ...], forward: int, orders: int
    ) -> NodeRecord:
        segments: list[NodeRecord] = []
        if derivative.segments is not None:
            for number in range(len(derivative.segments.inputs)):
                segment, places = derivative.segment(number)
                segments.append(self._node(segment, places, forward, orders))
        backwards: list[BackwardRecord] = []
        if not segments:
            backwards = self._backwards(derivative, wrt, orders)
        depends = [self._depending(derivative, place) for place in wrt]
        layout = derivative.layout
        return NodeRecord(layout, wrt, forward, tuple(depends), tuple(backwards), tuple(segments))

    def _backwards(
        self, derivative: Derivative, wrt: tuple[int, ...], orders: int
    ) -> list[BackwardRecord]:
        """Backward graphs for groups of outputs. A backward pass runs those of the groups that
        have cotangents, and adds their gradients. Zeros in place of missing cotangents would give
        NaN where a factor is infinite.
        """
        layout = derivative.layout
        results = tuple(place for place in layout.order if place < layout.results)
        groups = _groups(derivative, results)
        found = [
            self._backward(derivative, of, wrt, orders - 1)
            for of in dict.fromkeys([results, *groups])
            if of
        ]
        if orders > 1:
            # Saved values have cotangents where a derivative is differentiated again.
            reached = dict.fromkeys(of for each in found for of in _reached(derivative, each))
            others = [layout.order, *list(reached)[:MAX_GROUPS]]
            known = {each.of for each in found}
            found += [
                self._backward(derivative, of, wrt, orders - 2)
                for of in dict.fromkeys(others)
                if of and of not in known
            ]
        return found

    def _depending(self, derivative: Derivative, place: int) -> frozenset[int]:
        graph_module = derivative.graph_module
        found = {
            *outputs_with_derivative(graph_module, [place]),
            *outputs_requiring_grad(graph_module, [place]),
        }
        return frozenset(found & derivative.history)

    def _backward(
        self, derivative: Derivative, of: tuple[int, ...], wrt: tuple[int, ...], orders: int
    ) -> BackwardRecord:
        """`orders`: how often the backward graph itself is to be differentiated."""
        backward = self.compiler.backward(derivative, of, wrt)
        saved = derivative.saved_for(backward)
        gradients = enumerate(backward.gradients)
        return BackwardRecord(
            derivative.cotangents_of(backward),
            tuple(saved),
            tuple(place for place, each in gradients if each.of in backward.zeros),
            self.graph(
                backward.graph_module,
                self._differentiable(derivative, backward, saved, wrt),
                orders,
            ),
        )

    def _differentiable(
        self, derivative: Derivative, backward: Backward, saved: list[int], wrt: tuple[int, ...]
    ) -> list[int]:
        """Inputs of a backward graph that may require grad."""
        inputs = inputs_of(backward.graph_module.graph)
        layout = derivative.layout
        own = len(layout.saved_inputs)
        may = [
            layout.saved_inputs[n] in wrt
            if n < own
            else layout.saved_outputs[n - own] in layout.history
            for n in saved
        ]
        may += [True] * (len(inputs) - len(saved))
        return [
            place
            for place, (node, is_active) in enumerate(zip(inputs, may, strict=True))
            if is_active and _is_continuous(value_or_none(node))
        ]

    def _program(self, graph_module: fx.GraphModule, is_whole: bool) -> int:
        """The number of the graph's program."""
        called: frozenset[str] = frozenset()
        compiler = self.compiler
        optimized = compiler.undifferentiated(graph_module) if is_whole else graph_module
        ready = compiler.ready_to_run(optimized)
        while True:
            plan = self.compiler.plan(ready, self.target, called, is_whole, needs_kernels=False)
            if plan is None:
                raise ExportError(
                    f"{location_of_graph(graph_module)}\n  has sizes that depend on data, which a "
                    "program is not exported for"
                )
            names, refused = self.code.add(plan, self.target)
            if not refused:
                break
            nodes = frozenset(name for launch in refused for name in launch.nodes)
            if nodes <= called:
                raise ExportError(
                    f"{location_of_graph(graph_module)}\n  needs a kernel that LLVM rejects: "
                    f"{next(iter(refused.values()))}"
                )
            warn_of_fallback(
                f"{', '.join(sorted(nodes))} run op by op in the exported program, because LLVM "
                f"rejects their kernel: {next(iter(refused.values()))}",
                location_of_graph(graph_module).source,
            )
            called |= nodes
        self.assumed.update(dict.fromkeys(plan.assumed))
        self.plans.append(PlanText(self._text(plan, graph_module), names))
        return len(self.plans) - 1

    def _text(self, plan: Plan, graph_module: fx.GraphModule) -> str:
        try:
            return written_plan(without_bodies(self._with_constants(plan)), self.constants)
        except Unwritable as error:
            place = location_of_graph(graph_module)
            raise ExportError(f"{place}\n  has no form in a file: {error}") from error

    def _with_constants(self, plan: Plan) -> Plan:
        """The plan, whose constants have the names that they have in the file."""
        steps = [
            replace(step, target=self.constants.named(step.target.value))
            if isinstance(step, LibraryCall) and isinstance(step.target, HeldConstant)
            else step
            for step in plan.steps
        ]
        return replace(plan, steps=tuple(steps))


def _groups(derivative: Derivative, results: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of results that have a backward graph: their cotangents usually come together.

    They are all gradients of parameters, all gradients of saved values, and each other result by
    itself; what `MAX_GROUPS` leaves over is one group.
    """
    together: dict[object, list[int]] = {}
    for place, output in zip(results, derivative.described(results), strict=True):
        of = output.of if isinstance(output, Gradient) else None
        key: object = type(of) if isinstance(of, (Parameter, SavedInput)) else place
        if key not in together and len(together) >= MAX_GROUPS:
            key = None
        together.setdefault(key, []).append(place)
    return [tuple(group) for group in together.values()]


def _reached(derivative: Derivative, backward: BackwardRecord) -> list[tuple[int, ...]]:
    """The saved values that get a cotangent if groups of the gradients have one."""
    node, layout = backward.graph.node, derivative.layout
    if node is None:
        return []
    own = len(layout.saved_inputs)
    # For each input of the backward graph, the output of the forward graph that it is.
    outputs = [layout.saved_outputs[n - own] if n >= own else None for n in backward.saved]
    found: list[tuple[int, ...]] = []
    for each in node.segments or (node,):
        for of in (set(record.of) for record in each.backwards):
            places = {
                outputs[place]
                for place, depends in zip(each.wrt, each.depends, strict=True)
                if place < len(outputs) and depends & of
            }
            found.append(tuple(n for n in layout.order if n >= layout.results and n in places))
    return found


def _is_continuous(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.is_floating_point() or value.is_complex()
