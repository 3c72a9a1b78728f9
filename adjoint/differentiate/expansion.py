"""What a graph becomes before it is swept, so that what its derivative needs is there.

The forward half of a custom `autograd.Function` joins the graph, so that what it saves can be
saved.  Its results go on under `with_backward`, whose derivative is the backward half.  A saved
value has the history that it has in eager: that of an operand or of a result if it is one, and none
otherwise.  Functions that are told which cotangents are missing (`set_materialize_grads(False)`)
stay nodes.

An operator with bodies also returns what is *kept* for its reverse, which computes all else again:
what its bodies drew at random, and the values that a loop carries into each step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from adjoint.differentiate.activity import active_nodes
from adjoint.differentiate.copying import Copying, inline, inputs_of
from adjoint.graph.metadata import Mode, outputs_of, source_of
from adjoint.graph.operations import (
    LOOPS,
    apply_function,
    has_backward_per_pattern,
    with_backward,
)
from adjoint.graph.purity import is_impure
from adjoint.graph.subgraphs import body_of
from adjoint.torch_private.operators import recorded_loop

aten = torch.ops.aten
cond = torch.ops.higher_order.cond


def expand(graph_module: fx.GraphModule, wrt: Sequence[int] | None = None) -> fx.GraphModule:
    """The graph with the forward halves of custom functions in it, and with what bodies keep.

    Bodies keep it where a derivative with respect to the inputs `wrt` flows; None: everywhere.
    """
    flowing = set(graph_module.graph.nodes)
    if wrt is not None:
        inputs = inputs_of(graph_module)
        flowing = active_nodes(graph_module, [inputs[place] for place in wrt])
    expansion = _Expansion(graph_module)
    for node in graph_module.graph.nodes:
        expansion.plan(node, node in flowing)
    return expansion.run() if expansion.plans else graph_module


def saved_carries(body: fx.GraphModule, carries: int) -> dict[int, int]:
    """Which results of a loop's body show the values that it was given: carry to place."""
    inputs = {node: place for place, node in enumerate(inputs_of(body)[:carries])}
    found: dict[int, int] = {}
    for place, node in enumerate(outputs_of(body.graph)):
        if place >= carries and isinstance(node, fx.Node):
            if node.target is aten.scalar_tensor.default:
                (node, *_) = node.args
            if node in inputs:
                found[inputs[node]] = place
    return found


def is_random(node: Any) -> bool:
    """The value is of a run that cannot be repeated."""
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        (node, *_) = node.args
    return isinstance(node, fx.Node) and is_impure(node)


def _is_expanded(node: fx.Node) -> bool:
    return node.target is apply_function and not has_backward_per_pattern(node)


@dataclass
class _Body:
    """The copy of a body that is to return more."""

    copying: Copying
    outputs: list[Any]
    kept: list[fx.Node]

    def also(self, more: Sequence[Any]) -> fx.GraphModule:
        return self.copying.finish([*self.outputs, *more])

    def zeros(self, like: torch.Tensor) -> fx.Node:
        options = {"dtype": like.dtype, "device": like.device}
        return self.copying.emitter.call(aten.zeros.default, (list(like.shape),), options, Mode())


class _Expansion:
    """A copy of a graph, as it grows."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.primal = graph_module
        self.copying = Copying(graph_module)
        self.plans: dict[fx.Node, Callable[[dict[fx.Node, Any]], fx.Node]] = {}

    def plan(self, node: fx.Node, is_flowing: bool) -> None:
        """Find what is to become of `node`, unless it stays what it is."""
        made: Any = None
        if _is_expanded(node):
            made = self._expand_function
        elif is_flowing and node.target is cond:
            made = self._expand_cond(node)
        elif is_flowing and node.target in LOOPS:
            made = self._expand_loop(node)
        if made is not None:
            self.plans[node] = lambda copies: made(node, copies)

    def run(self) -> fx.GraphModule:
        """The expanded graph."""
        returned = inline(self.primal, {}, self._copy)
        return self.copying.finish(returned)

    def _copy(self, owner: fx.GraphModule, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        plan = self.plans.get(node)
        return self.copying.copy(owner, node, copies) if plan is None else plan(copies)

    def _expand_function(self, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        arguments: Any = node.args
        forward, ((_, backward),), fixed, _, *operands = arguments
        inputs = fx.map_arg(operands, copies.__getitem__)
        body = body_of(self.primal, forward)
        entering = dict(zip(inputs_of(body), inputs, strict=True))
        results, saved = inline(body, entering, self.copying.copy)
        args = (copies[backward], fixed, tuple(results), tuple(saved), *inputs)
        return self._call(node, with_backward, args, node.meta["val"])

    # Bodies -----------------------------------------------------------------------------------

    def _expand_cond(self, node: fx.Node) -> Any:
        arguments: Any = node.args
        _, true, false, _ = arguments
        bodies = [_copied(body_of(self.primal, each), 0, source_of(node)) for each in (true, false)]
        on_true, on_false = (each.kept for each in bodies)
        kept = [*on_true, *on_false]
        if not kept:
            return None
        graphs = [
            bodies[0].also([*on_true, *(bodies[0].zeros(n.meta["val"]) for n in on_false)]),
            bodies[1].also([*(bodies[1].zeros(n.meta["val"]) for n in on_true), *on_false]),
        ]

        def made(node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
            names = [
                self.copying.emitter.attribute(n, g) for n, g in zip(_BRANCHES, graphs, strict=True)
            ]
            pred, _, _, operands = fx.map_arg(node.args, copies.__getitem__)
            value = (*node.meta["val"], *(each.meta["val"] for each in kept))
            return self._call(node, cond, (pred, *names, operands), value)

        return made

    def _expand_loop(self, node: fx.Node) -> Any:
        loop, arguments = LOOPS[node.target], list[Any](node.args)
        step = body_of(self.primal, arguments[loop.body])
        body = _copied(step, loop.carries(arguments), source_of(node))
        if not body.kept:
            return None
        graph = body.also(body.kept)

        def made(node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
            args = [fx.map_arg(each, copies.__getitem__) for each in arguments]
            args[loop.body] = self.copying.emitter.attribute("step", graph)
            tracer = self.copying.tracer
            xs = loop.part(arguments, loop.xs)
            with tracer.untraced():
                count = xs[0].meta["val"].shape[0] if xs else tracer.unknown_number(of_tensor=True)
                kept = [each.meta["val"] for each in body.kept]
                stacked = [each.new_empty((count, *each.shape)) for each in kept]
            target = node.target if xs else recorded_loop
            return self._call(node, target, tuple(args), (*node.meta["val"], *stacked))

        return made

    def _call(self, node: fx.Node, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        made = self.copying.emitter.graph.call_function(target, args)
        made.meta = {**node.meta, "val": value}
        self.copying.emitter.bind_symbols(made, value)
        return made


_BRANCHES = ("true", "false")


def _copied(body: fx.GraphModule, carries: int, line: Any) -> _Body:
    """A copy of `body`, and those of its values that are to be kept and are not returned yet."""
    if any(map(is_impure, body.graph.nodes)):
        body = expand(body)
    copying, copies = Copying(body), dict[fx.Node, Any]()
    copying.emitter.line = line
    returned = list(inline(body, copies, copying.copy))
    kept: list[fx.Node] = []
    there = saved_carries(body, carries)
    for place, node in enumerate(inputs_of(body)[:carries]):
        if place not in there:
            kept.append(_as_tensor(copying, copies[node]))
    for node in filter(is_impure, body.graph.nodes):
        results = _results(copying, node, copies)
        kept += [each for each in results if each not in returned[carries:]]
    return _Body(copying, returned, kept)


def _as_tensor(copying: Copying, node: fx.Node) -> fx.Node:
    if isinstance(node.meta["val"], torch.Tensor):
        return node
    options = {"dtype": torch.int64}
    return copying.emitter.call(aten.scalar_tensor.default, (node,), options, Mode())


def _results(copying: Copying, node: fx.Node, copies: dict[fx.Node, Any]) -> Iterator[fx.Node]:
    """The tensors that `node` gives, as nodes of the copy."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        yield copies[node]
        return
    taken = {user.args[1]: copies[user] for user in node.users if user.target is operator.getitem}
    for index, each in enumerate(value):
        if isinstance(each, torch.Tensor):
            yield taken.get(index) or copying.emitter.item(copies[node], index)
