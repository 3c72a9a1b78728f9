"""Preparing a graph for the reverse sweep, so that the values that its derivative needs exist.

The forward half of a custom `autograd.Function` is inlined, so that what it saves becomes a saved
value.  Its results pass through `with_backward`, whose derivative is the backward half.  A saved
value has the history that it has in eager: that of an operand or result if it is one, and none
otherwise. Functions that handle missing cotangents themselves (`set_materialize_grads(False)`) stay
nodes.

Branches and loops additionally return what their reverse cannot recompute: the random numbers drawn
in their bodies, and the values that a loop carries into each step.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.copying import Copies, Copying, inline
from adjoint.errors import SourceLine
from adjoint.graph.metadata import (
    Mode,
    arguments_of,
    callee_of,
    inputs_of,
    outputs_of,
    source_of,
    tensor_of,
    value_of,
)
from adjoint.graph.operations import (
    LOOPS,
    apply_function,
    has_backward_per_pattern,
    with_backward,
)
from adjoint.graph.purity import is_impure
from adjoint.graph.subgraphs import body_of
from adjoint.open_types import Callee, OpArguments
from adjoint.torch_private.operators import recorded_loop

aten = torch.ops.aten
cond = torch.ops.higher_order.cond


def expand(graph_module: fx.GraphModule, wrt: Sequence[int] | None = None) -> fx.GraphModule:
    """The graph with custom functions inlined, and with bodies that return what their reverse
    needs.

    Only bodies that a derivative with respect to the inputs `wrt` flows through; None: all.
    """
    active = set(graph_module.graph.nodes) if wrt is None else active_nodes(graph_module, wrt)
    expansion = _Expansion(graph_module)
    for node in graph_module.graph.nodes:
        expansion.plan(node, node in active)
    return expansion.run() if expansion.plans else graph_module


def saved_carries(body: fx.GraphModule, carries: int) -> dict[int, int]:
    """By carried value: the position of the result of the body that returns it unchanged."""
    inputs = {node: place for place, node in enumerate(inputs_of(body.graph)[:carries])}
    found: dict[int, int] = {}
    for place, node in enumerate(outputs_of(body.graph)):
        if place >= carries and isinstance(node, fx.Node):
            if node.target is aten.scalar_tensor.default:
                (node, *_) = node.args
            if node in inputs:
                found[inputs[node]] = place
    return found


def is_random(node: object) -> bool:
    """Whether a value is computed by an impure node, which cannot be run again."""
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        (node, *_) = node.args
    return isinstance(node, fx.Node) and is_impure(node)


def _is_expanded(node: fx.Node) -> bool:
    return node.target is apply_function and not has_backward_per_pattern(node)


@dataclass
class _Body:
    """A copy of a body that is to return more results."""

    copying: Copying
    outputs: list[object]
    saved: list[fx.Node]
    """What the reverse needs and the body does not return yet."""

    def also(self, more: Sequence[object]) -> fx.GraphModule:
        return self.copying.finish([*self.outputs, *more])

    def zeros(self, like: torch.Tensor) -> fx.Node:
        options = {"dtype": like.dtype, "device": like.device}
        return self.copying.emitter.call(aten.zeros.default, (list(like.shape),), options, Mode())


class _Expansion:
    """An expanded copy of a graph under construction."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.primal = graph_module
        self.copying = Copying(graph_module)
        self.plans: dict[fx.Node, Callable[[Copies], fx.Node]] = {}

    def plan(self, node: fx.Node, is_active: bool) -> None:
        """Decide what `node` becomes, unless it is copied unchanged."""
        made: Callable[[fx.Node, Copies], fx.Node] | None = None
        if _is_expanded(node):
            made = self._expand_function
        elif is_active and node.target is cond:
            made = self._expand_cond(node)
        elif is_active and node.target in LOOPS:
            made = self._expand_loop(node)
        if made is not None:
            self.plans[node] = functools.partial(made, node)

    def run(self) -> fx.GraphModule:
        """The expanded graph."""
        returned = inline(self.primal, {}, self._copy)
        return self.copying.finish(returned)

    def _copy(self, owner: fx.GraphModule, node: fx.Node, copies: dict[fx.Node, object]) -> fx.Node:
        plan = self.plans.get(node)
        return self.copying.copy(owner, node, copies) if plan is None else plan(copies)

    def _expand_function(self, node: fx.Node, copies: Copies) -> fx.Node:
        forward, ((_, backward),), fixed, _, *operands = arguments_of(node)
        inputs = fx.map_arg(operands, copies.__getitem__)
        body = body_of(self.primal, forward)
        entering = dict(zip(inputs_of(body.graph), inputs, strict=True))
        results, saved = inline(body, entering, self.copying.copy)
        args = (copies[backward], fixed, tuple(results), tuple(saved), *inputs)
        return self._call(node, with_backward, args, value_of(node))

    # Bodies -----------------------------------------------------------------------------------

    def _expand_cond(self, node: fx.Node) -> Callable[[fx.Node, Copies], fx.Node] | None:
        _, true, false, _ = arguments_of(node)
        bodies = [_copied(body_of(self.primal, each), 0, source_of(node)) for each in (true, false)]
        on_true, on_false = (each.saved for each in bodies)
        saved = [*on_true, *on_false]
        if not saved:
            return None
        graphs = [
            bodies[0].also([*on_true, *(bodies[0].zeros(tensor_of(n)) for n in on_false)]),
            bodies[1].also([*(bodies[1].zeros(tensor_of(n)) for n in on_true), *on_false]),
        ]

        def made(node: fx.Node, copies: Copies) -> fx.Node:
            names = [
                self.copying.emitter.attribute(n, g) for n, g in zip(_BRANCHES, graphs, strict=True)
            ]
            pred, _, _, operands = fx.map_arg(node.args, copies.__getitem__)
            value = (*value_of(node), *(value_of(each) for each in saved))
            return self._call(node, cond, (pred, *names, operands), value)

        return made

    def _expand_loop(self, node: fx.Node) -> Callable[[fx.Node, Copies], fx.Node] | None:
        loop, arguments = LOOPS[node.target], arguments_of(node)
        step = body_of(self.primal, arguments[loop.body])
        body = _copied(step, loop.carries(arguments), source_of(node))
        if not body.saved:
            return None
        graph = body.also(body.saved)

        def made(node: fx.Node, copies: Copies) -> fx.Node:
            args = [fx.map_arg(each, copies.__getitem__) for each in arguments]
            args[loop.body] = self.copying.emitter.attribute("step", graph)
            tracer = self.copying.tracer
            xs = loop.part(arguments, loop.xs)
            with tracer.untraced():
                count = tensor_of(xs[0]).shape[0] if xs else tracer.unknown_number(of_tensor=True)
                saved = [tensor_of(each) for each in body.saved]
                stacked = [each.new_empty((count, *each.shape)) for each in saved]
            target = callee_of(node) if xs else recorded_loop
            return self._call(node, target, tuple(args), (*value_of(node), *stacked))

        return made

    def _call(self, node: fx.Node, target: Callee, args: OpArguments, value: object) -> fx.Node:
        made = self.copying.emitter.graph.call_function(target, args)
        made.meta = {**node.meta, "val": value}
        self.copying.emitter.bind_symbols(made, value)
        return made


_BRANCHES = ("true", "false")


def _copied(body: fx.GraphModule, carries: int, line: SourceLine | None) -> _Body:
    """A copy of `body`, with what its reverse needs and it does not return yet."""
    if any(map(is_impure, body.graph.nodes)):
        body = expand(body)
    copying, copies = Copying(body), Copies()
    copying.emitter.line = line
    returned = list(inline(body, copies, copying.copy))
    saved: list[fx.Node] = []
    there = saved_carries(body, carries)
    for place, node in enumerate(inputs_of(body.graph)[:carries]):
        if place not in there:
            saved.append(_as_tensor(copying, copies[node]))
    for node in filter(is_impure, body.graph.nodes):
        results = _results(copying, node, copies)
        saved += [each for each in results if each not in returned[carries:]]
    return _Body(copying, returned, saved)


def _as_tensor(copying: Copying, node: fx.Node) -> fx.Node:
    if isinstance(value_of(node), torch.Tensor):
        return node
    options = {"dtype": torch.int64}
    return copying.emitter.call(aten.scalar_tensor.default, (node,), options, Mode())


def _results(copying: Copying, node: fx.Node, copies: Copies) -> Iterator[fx.Node]:
    """The tensors that `node` returns, as nodes of the copy."""
    value = value_of(node)
    if isinstance(value, torch.Tensor):
        yield copies[node]
        return
    taken = {user.args[1]: copies[user] for user in node.users if user.target is operator.getitem}
    for index, each in enumerate(value):
        if isinstance(each, torch.Tensor):
            yield taken.get(index) or copying.emitter.item(copies[node], index)
