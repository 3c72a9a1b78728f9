"""New nodes: a replacement as nodes before the root of a match.

A new node has the user's line, the autograd mode, the checkpoint region and the derivative (
`grad_of`) of the root; the one that takes its place has its origin, too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import sympy
import torch
from torch import fx

from adjoint.failing import call_user_code
from adjoint.graph.metadata import callee_of, value_of, value_or_none
from adjoint.graph.origins import for_part_of
from adjoint.open_types import Callee, OpArgument, OpArguments, OpKeywords
from adjoint.rewrite.patterns import Call, NoMatch, Size, Wildcard
from adjoint.rewrite.recording import Recorder, Untraceable
from adjoint.rewrite.refreshing import fake_value
from adjoint.rewrite.rules import Edit, Traced
from adjoint.torch_private import size_evaluation, symbols, trees
from adjoint.torch_private.graph_modules import set_arguments
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import Symbolic


class WrongReplacement(Exception):
    """A replacement cannot be built, and why."""


class Builder:
    """Makes the nodes of one replacement, in front of `before`."""

    def __init__(self, root: fx.Node, before: fx.Node, bound: Mapping[str, object]) -> None:
        self.root = root
        self.graph = root.graph
        self.before = before
        self.bound = bound
        self.made: list[fx.Node] = []

    def built(self, replacement: object) -> list[OpArgument]:
        """The nodes that compute the outputs of a replacement."""
        if isinstance(replacement, (tuple, list)):
            return [self.value(each) for each in replacement]
        if isinstance(replacement, Traced):
            return self.traced(replacement)
        return [self.value(replacement)]

    def value(self, expression: object) -> OpArgument:
        """An expression as an argument of a node."""
        match expression:
            case Wildcard() | Size():
                return self.value(self.bound[expression.name])
            case Call():
                args = tuple(map(self.value, expression.args))
                kwargs = {name: self.value(each) for name, each in expression.kwargs.items()}
                return self.call(expression.ops[0], args, kwargs)
            case Traced():
                (only,) = self.traced(expression)
                return only
            case Edit():
                raise WrongReplacement("an edit is the whole replacement, or no part of it")
            case list():
                return [self.value(each) for each in expression]
            case tuple():
                return tuple(self.value(each) for each in expression)
            case _ if isinstance(expression, symbols.SYMBOLIC):
                return self.number(expression)
            case _:
                return expression

    def call(
        self,
        op: Callee,
        args: OpArguments,
        kwargs: OpKeywords,
        value: object = None,
    ) -> fx.Node:
        """A new node; its value is computed on fakes unless it is given."""
        with self.graph.inserting_before(self.before):
            node = self.graph.create_node("call_function", op)
        set_arguments(node, args, kwargs)
        self.made.append(node)
        node.meta = for_part_of(self.root, value if value is not None else _fake(node))
        return node

    def traced(self, replacement: Traced) -> list[object]:
        """The nodes of what a torch function does with values like these."""
        args = [self.value(each) for each in replacement.args]
        values = fx.map_arg(args, value_of)
        # What it computes may be differentiated.
        recorder = Recorder(differentiated=True)
        with recorder:
            try:
                results = recorder.current(call_user_code(replacement.function, *values))
            except Untraceable as error:
                raise WrongReplacement(str(error)) from None
        nodes: dict[int, object] = {
            id(value): node for node, value in zip(args, values, strict=True)
        }

        def leaf(each: object) -> object:
            if isinstance(each, torch.Tensor):
                if id(each) not in nodes:
                    raise WrongReplacement("it uses a tensor that is not an argument")
                return nodes[id(each)]
            return self.number(each) if isinstance(each, symbols.SYMBOLIC) else each

        for step in recorder.steps:
            step_args, step_kwargs = trees.map_leaves(leaf, (step.args, step.kwargs))
            node = self.call(step.op, step_args, step_kwargs, step.result)
            nodes[id(step.result)] = node
            if not isinstance(step.result, torch.Tensor):
                for place, part in enumerate(step.result):
                    if isinstance(part, torch.Tensor):
                        nodes[id(part)] = self.call(operator.getitem, (node, place), {}, part)
        returned = results if isinstance(results, (tuple, list)) else [results]
        return [leaf(each) for each in returned]

    def number(self, value: Symbolic) -> object:
        """A node for a symbolic size; the number itself if it is constant."""
        expr = symbols.expression(value)
        free = symbols.symbols_of(expr)
        if not free:
            return symbols.constant_value(expr)
        for node in self.graph.nodes:
            if node is self.before:
                break
            known = value_or_none(node)
            if isinstance(known, symbols.SYMBOLIC) and symbols.expression(known) == expr:
                return node
        bindings = {symbol: self._symbol(symbol) for symbol in free}
        with self.graph.inserting_before(self.before):
            value_node, made = size_evaluation.as_nodes(expr, bindings, self.graph)
        for node in made:
            self.made.append(node)
            args = fx.map_arg(node.args, value_of)
            node.meta = for_part_of(self.root, callee_of(node)(*args))
        return value_node

    def _symbol(self, symbol: sympy.Symbol) -> fx.Node:
        """A node for a symbol that is a size of some value before."""
        for node in self.graph.nodes:
            if node is self.before:
                break
            value = value_or_none(node)
            if isinstance(value, torch.Tensor):
                sizes: list[object] = list(value.shape)
                for axis, size in enumerate(sizes):
                    if isinstance(size, torch.SymInt) and symbols.expression(size) == symbol:
                        return self.call(torch.ops.aten.sym_size.int, (node, axis), {}, size)
        raise WrongReplacement(f"the size {symbol} is that of no value before it")

    def finish(self, replaced: fx.Node, new: fx.Node) -> None:
        """Give the node that takes the place of another what belongs to that node's value."""
        if new in self.made:
            part = replaced.meta.get("part_of")
            new.meta.pop("part_of", None)
            if part is not None:
                new.meta["part_of"] = part

    def undo(self) -> None:
        """Remove the nodes again."""
        for node in reversed(self.made):
            self.graph.erase_node(node)
        self.made.clear()

    def remove_unused(self, kept: Sequence[fx.Node]) -> None:
        """Remove new nodes that nothing uses, such as unused results of an operator."""
        for node in reversed(self.made):
            if not node.users and node not in kept:
                self.graph.erase_node(node)


def _fake(node: fx.Node) -> object:
    try:
        return fake_value(node)
    except (RuntimeError, ValueError, IndexError) as error:
        # A view that the strides of its argument do not allow.
        if isinstance(node.target, OpOverload) and node.target.is_view:
            raise NoMatch from error
        raise WrongReplacement(
            f"{node.target} of the replacement failed with {type(error).__name__}: {error}"
        ) from error
