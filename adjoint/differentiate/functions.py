"""Custom `autograd.Function`s: their halves become part of the graphs around them.

The forward half joins the forward graph, so that what it saves can be saved.  Its results go on
under `with_backward`, whose derivative is the backward half.  A saved value has the history that it
has in eager: that of an operand or of a result if it is one, and none otherwise.

Functions that are told which cotangents are missing (`set_materialize_grads(False)`) stay nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from adjoint.graph.operations import apply_function, tells_what_is_missing, with_backward

Copy = Callable[[fx.GraphModule, fx.Node, dict[fx.Node, Any]], Any]


def expanded(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph with the forward halves of custom functions in it."""
    if not any(map(_is_expanded, graph_module.graph.nodes)):
        return graph_module
    return _Expansion(graph_module).run()


def inline(body: fx.GraphModule, inputs: Sequence[Any], copy: Copy) -> Any:
    """What `body` returns for `inputs`, its nodes copied by `copy` to where they are."""
    values: dict[fx.Node, Any] = {}
    entering = iter(inputs)
    for node in body.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], values.__getitem__)
        values[node] = next(entering) if node.op == "placeholder" else copy(body, node, values)
    raise AssertionError("the body has no output")


def _is_expanded(node: fx.Node) -> bool:
    return node.target is apply_function and not tells_what_is_missing(node)


class _Expansion:
    """A copy of a graph, as it grows."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.primal = graph_module
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}

    def run(self) -> fx.GraphModule:
        """The expanded graph."""
        copies: dict[fx.Node, Any] = {}
        for node in self.primal.graph.nodes:
            copies[node] = (self._expand if _is_expanded(node) else self._copy)(node, copies)
        made = fx.GraphModule(self.attributes, self.graph)
        made.meta["entry_mode"] = self.primal.meta["entry_mode"]
        return made

    def _expand(self, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        arguments: Any = node.args
        forward, ((_, backward),), fixed, _, *operands = arguments
        inputs = fx.map_arg(operands, copies.__getitem__)
        body = getattr(self.primal, str(forward.target))
        results, saved = inline(body, inputs, self._copy_in)
        args = (copies[backward], fixed, tuple(results), tuple(saved), *inputs)
        made = self.graph.call_function(with_backward, args)
        made.meta = dict(node.meta)
        return made

    def _copy(self, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        return self._copy_in(self.primal, node, copies)

    def _copy_in(self, owner: fx.GraphModule, node: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        if node.op == "get_attr":
            name = f"{str(node.target).rstrip('_0123456789')}_{len(self.attributes)}"
            self.attributes[name] = getattr(owner, str(node.target))
            copy = self.graph.create_node("get_attr", name)
        else:
            copy = self.graph.node_copy(node, copies.__getitem__)
        copy.meta = dict(node.meta)
        return copy
