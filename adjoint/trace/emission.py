"""Appending nodes to a graph, each with its metadata: fake value, source line, mode, region."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeAlias

import sympy
import torch
from torch import fx

from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import (
    CheckpointRegion,
    GradOf,
    Mode,
    callee_of,
    mode_of,
    set_mode,
    set_region,
    set_source,
    set_value,
    value_at,
    value_of,
)
from adjoint.open_types import Callee, OpArgument, OpArguments, OpKeywords, TorchValue
from adjoint.source import user_line
from adjoint.torch_private import size_evaluation, symbols, trees
from adjoint.torch_private.autograd import Hooks, forward_mode_is_enabled
from adjoint.torch_private.fake import fake_call
from adjoint.torch_private.modes import enable_python_dispatcher
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import Symbolic

aten = torch.ops.aten


# Overrides the autograd mode, and whether forward mode is enabled, that nodes are marked with.
_override: ContextVar[tuple[Mode, bool] | None] = ContextVar("_override", default=None)


def current_mode() -> Mode:
    """The autograd mode that nodes are marked with now."""
    if (override := _override.get()) is not None:
        return override[0]
    return Mode(torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def _forward_mode_is_enabled() -> bool:
    override = _override.get()
    return forward_mode_is_enabled() if override is None else override[1]


@contextlib.contextmanager
def as_under(mode: Mode) -> Iterator[None]:
    """Mark nodes as if they ran under `mode`, with forward mode as it is on entry."""
    token = _override.set((mode, _forward_mode_is_enabled()))
    try:
        yield
    finally:
        _override.reset(token)


# What torch.fx can print as an argument in the code of a graph.
_PRINTABLE = (
    fx.Node,
    bool,
    int,
    float,
    complex,
    str,
    slice,
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    OpOverload,
)

# Enters a context in which ops on fakes are neither traced nor recorded by autograd.
Untraced: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]


class _Unbound(LookupError):
    """Nothing in this graph defines a symbol."""


class Emitter:
    """A graph under construction.

    Values of nodes are fakes without autograd history: `requires_grad` and `_base` are properties
    of the traced tensors alone.
    """

    def __init__(self, untraced: Untraced) -> None:
        self.graph = fx.Graph()
        self.untraced = untraced
        self.attributes: dict[str, object] = {}
        self.region: CheckpointRegion | None = None
        self.hooks: Hooks | None = None
        # The forward node whose derivative is being traced.
        self.grad_of: GradOf | None = None
        # The source line of the node being interpreted, when the traced program is itself a graph.
        self.line: SourceLine | None = None
        # In a nested graph: makes an input for a symbol that this graph does not define.
        self.lift_number: Callable[[Symbolic], fx.Node] | None = None
        self._last_placeholder: fx.Node | None = None
        self._symbol_makers: dict[sympy.Symbol, Callable[[], fx.Node]] = {}
        self._symbol_nodes: dict[sympy.Basic, fx.Node] = {}
        # Sizes that are compound expressions, each with a function that makes a node for it.
        self._compound: list[tuple[sympy.Basic, Callable[[], fx.Node]]] = []

    def source(self) -> SourceLine | None:
        """The user's line that runs now."""
        return self.line if self.line is not None else user_line()

    # Nodes ------------------------------------------------------------------------------------

    def placeholder(self, name: str, value: object) -> fx.Node:
        """A new input, after the existing ones."""
        point: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        first = next(iter(self.graph.nodes), None)
        if self._last_placeholder is not None:
            point = self.graph.inserting_after(self._last_placeholder)
        elif first is not None:
            point = self.graph.inserting_before(first)
        with point:
            node = self.graph.placeholder(name)
        node.target = node.name  # unique, as an argument's name must be
        self._last_placeholder = node
        set_value(node, self.snapshot(value))
        set_mode(node, Mode())
        self.bind_symbols(node, value)
        return node

    def recount_placeholders(self) -> None:
        """Find the last input again, after inputs were reordered."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        self._last_placeholder = inputs[-1] if inputs else None

    def attribute(self, stem: str, value: object) -> fx.Node:
        """A `get_attr` node for `value`, which becomes an attribute of the graph's module."""
        name = next((name for name, known in self.attributes.items() if known is value), None)
        if name is None:
            name = next(
                name
                for name in (f"{stem}_{count}" for count in itertools.count())
                if name not in self.attributes
            )
            self.attributes[name] = value
        # Not `graph.get_attr`, which checks the module: that is created only when the graph is
        # done.
        node = self.graph.create_node("get_attr", name)
        node.meta.update(mode=current_mode(), source=self.source(), region=self.region)
        return node

    def call(
        self,
        target: Callee,
        args: OpArguments,
        kwargs: OpKeywords | None = None,
        mode: Mode | None = None,
        value: object = None,
    ) -> fx.Node:
        """A call of `target`; its value is computed on fakes unless `value` is given."""
        kwargs = kwargs or {}
        args, kwargs = trees.map_leaves(self._argument, (args, kwargs))
        if value is None:
            value = self.evaluate(target, args, kwargs)
        node = self.graph.call_function(target, args, kwargs)
        set_value(node, self.snapshot(value))
        set_mode(node, current_mode() if mode is None else mode)
        if not _forward_mode_is_enabled():
            node.meta["forward"] = False
        set_source(node, self.source())
        set_region(node, self.region)
        if self.hooks is not None:
            node.meta["hooks"] = self.hooks
        if self.grad_of is not None:
            node.meta.update(grad_of=self.grad_of, order=self.grad_of.order)
        return node

    def _argument(self, leaf: object) -> object:
        """`leaf` as an argument of a node; what torch.fx cannot print becomes an attribute."""
        if isinstance(leaf, symbols.SYMBOLIC):
            return self.number(leaf)
        if leaf is None or isinstance(leaf, _PRINTABLE):
            return leaf
        node = self.attribute("object", leaf)
        set_value(node, leaf)
        return node

    def detach_for_users(self, node: fx.Node) -> None:
        """Make the present users of `node` use a detached value of it."""
        users = list(node.users)
        if not users:
            return
        assert self._last_placeholder is not None
        with self.graph.inserting_after(self._last_placeholder):
            cut = self.call(aten.detach.default, (node,), mode=Mode(grad_enabled=False))
        for user in users:
            user.replace_input_with(node, cut)

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """The `index`-th of the values that `node` returns."""
        value = value_of(node)[index]
        return self.call(operator.getitem, (node, index), mode=mode_of(node), value=value)

    def evaluate(
        self, target: Callable[..., object], args: tuple[object, ...], kwargs: OpKeywords
    ) -> object:
        """The fake result of calling `target` on the values of nodes."""
        args, kwargs = trees.map_leaves(value_at, args), trees.map_leaves(value_at, kwargs)
        with self.untraced(), enable_python_dispatcher():
            return fake_call(target, args, kwargs)

    def snapshot(self, value: object) -> TorchValue:
        """`value` with tensors detached, so that later changes of their metadata do not show."""
        with self.untraced():
            return trees.map_leaves(detached, value)

    # Shapes -----------------------------------------------------------------------------------

    def reshape(self, node: fx.Node, shape: Sequence[int], mode: Mode | None = None) -> fx.Node:
        """`node` in another shape, as a view where its strides allow that."""
        return self.view(aten.view.default, node, (list(shape),), {}, mode)

    def view(
        self,
        op: Callable[..., object],
        node: fx.Node,
        args: tuple[object, ...],
        kwargs: OpKeywords,
        mode: Mode | None = None,
        value: object = None,
    ) -> fx.Node:
        """A view of `node`, or of a contiguous copy if its strides do not allow the view.

        The value of a node may have other strides than the traced tensor.
        """
        numbers, named = self.number_nodes(args), self.number_nodes(kwargs)
        if value is not None:
            return self.call(op, (node, *numbers), named, mode, value)
        try:
            value = self.evaluate(op, (node, *numbers), named)
        except (RuntimeError, ValueError):
            dense = {"memory_format": torch.contiguous_format}
            node = self.call(aten.clone.default, (node,), dense, mode)
            value = None
        return self.call(op, (node, *numbers), named, mode, value)

    # Symbols ----------------------------------------------------------------------------------

    def bind(self, symbol: sympy.Symbol, make: Callable[[], fx.Node]) -> None:
        """Define how to compute `symbol`, unless it is defined already."""
        self._symbol_makers.setdefault(symbol, make)

    def bind_symbols(self, node: fx.Node, value: object) -> None:
        """Define symbols that first appear in `value` as sizes, strides or the value of `node`."""
        if isinstance(value, torch.Tensor):
            for symbol, query, axis in symbols.size_symbols(value):
                if symbol not in self._symbol_makers:
                    self.bind(symbol, functools.partial(self._size_query, query, node, axis))
            for axis, size in enumerate(value.shape):
                if symbols.is_compound(size):
                    query = functools.partial(self._size_query, aten.sym_size.int, node, axis)
                    self._compound.append((size, query))
        elif isinstance(value, symbols.SYMBOLIC):
            expr = symbols.expression(value)
            if isinstance(expr, sympy.Symbol):
                self.bind(expr, lambda: node)

    def number(self, value: Symbolic) -> object:
        """A node for a symbolic number; the number itself if it is constant."""
        expr = symbols.expression(value)
        known = self._symbol_nodes.get(expr)
        if known is not None:
            return known
        free = symbols.symbols_of(expr)
        if not free:
            return symbols.constant_value(expr)
        try:
            bindings = {symbol: self._symbol_node(symbol) for symbol in free}
        except _Unbound as missing:
            if self.lift_number is None:
                raise CaptureError(
                    f"size {missing.args[0]}",
                    "it is not the size of any input",
                    "pass the number, or a tensor of that size, as an argument",
                    self.source(),
                ) from None
            self._symbol_nodes[expr] = self.lift_number(value)
            return self._symbol_nodes[expr]
        self._symbol_nodes[expr] = self._evaluated(expr, bindings)
        return self._symbol_nodes[expr]

    def _evaluated(self, expr: sympy.Basic, bindings: dict[sympy.Symbol, fx.Node]) -> fx.Node:
        """Nodes that compute `expr`; returns the last."""
        node, made = size_evaluation.as_nodes(expr, bindings, self.graph)
        for new in made:
            arguments = trees.map_leaves(value_at, new.args)
            new.meta.update(val=callee_of(new)(*arguments), mode=Mode(), source=self.source())
        return node

    def number_nodes(self, tree: object) -> OpArgument:
        """`tree` with each symbolic number replaced by a node."""
        return trees.map_leaves(
            lambda leaf: self.number(leaf) if isinstance(leaf, symbols.SYMBOLIC) else leaf, tree
        )

    def _symbol_node(self, symbol: sympy.Symbol) -> fx.Node:
        if symbol not in self._symbol_nodes:
            make = self._symbol_makers.get(symbol)
            self._symbol_nodes[symbol] = self._solved(symbol) if make is None else make()
        return self._symbol_nodes[symbol]

    def _solved(self, symbol: sympy.Symbol) -> fx.Node:
        """A symbol that is not a size itself, solved for from a size that is an expression of
        it."""
        for size, make in self._compound:
            whole = sympy.Dummy(integer=True)
            solution = symbols.solve(symbols.expression(size), symbol, whole)
            if solution is not None:
                others = [each for each in symbols.symbols_of(solution) if each != whole]
                if all(each in self._symbol_makers for each in others):
                    bindings = {each: self._symbol_node(each) for each in others}
                    return self._evaluated(solution, {**bindings, whole: make()})
        raise _Unbound(symbol)

    def _size_query(self, query: Callable[..., object], node: fx.Node, axis: int) -> fx.Node:
        args = (node,) if axis < 0 else (node, axis)
        return self.call(query, args, mode=Mode())


def needs_node(result: object) -> bool:
    """Whether a result holds a tensor or a symbolic number, which only a node can represent."""
    return any(isinstance(leaf, (torch.Tensor, *symbols.SYMBOLIC)) for leaf in trees.leaves(result))
