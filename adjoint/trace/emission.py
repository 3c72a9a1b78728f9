"""Appending nodes to a graph, each with its fake value, the user's line, its mode and region."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx

from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.metadata import CheckpointRegion, GradOf, Mode
from adjoint.source import user_line
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.fake import fake_call
from adjoint.torch_private.modes import enable_python_dispatcher, forward_mode_is_enabled
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten


# The mode, and whether forward mode is enabled, that a program is captured as if under.
_pretended: ContextVar[tuple[Mode, bool] | None] = ContextVar("_pretended", default=None)


def current_mode() -> Mode:
    """The autograd mode that the program runs under now."""
    if (pretended := _pretended.get()) is not None:
        return pretended[0]
    return Mode(torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def _forward_mode_is_enabled() -> bool:
    pretended = _pretended.get()
    return forward_mode_is_enabled() if pretended is None else pretended[1]


@contextlib.contextmanager
def as_under(mode: Mode) -> Iterator[None]:
    """Capture what runs now as if it ran under `mode`, and forward mode were as it is now."""
    token = _pretended.set((mode, _forward_mode_is_enabled()))
    try:
        yield
    finally:
        _pretended.reset(token)


# What torch.fx can write down as an argument in the code of a graph.
_WRITABLE = (
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

# Enters a context in which ops on fakes are neither captured nor recorded by autograd.
Quietly: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]


class _Unbound(LookupError):
    """Nothing in this graph defines a symbol."""


class Emitter:
    """A graph under construction.

    Values are fakes without history: facts about autograd belong to the tensors of the traced
    program, which the graph only describes.
    """

    def __init__(self, quietly: Quietly) -> None:
        self.graph = fx.Graph()
        self.quietly = quietly
        self.attributes: dict[str, Any] = {}
        self.region: CheckpointRegion | None = None
        self.hooks: Any = None
        # What the nodes made now are a derivative of, when they are part of one.
        self.grad_of: GradOf | None = None
        # The line of the node being interpreted, when what is captured is itself a graph.
        self.line: SourceLine | None = None
        # Makes a symbol that nothing here defines an input, in graphs that have one around them.
        self.unbound: Callable[[Any], fx.Node] | None = None
        self._last_placeholder: fx.Node | None = None
        self._symbol_makers: dict[sympy.Symbol, Callable[[], fx.Node]] = {}
        self._symbol_nodes: dict[sympy.Basic, fx.Node] = {}
        # Sizes that are expressions, and how to read each of them.
        self._compound: list[tuple[Any, Callable[[], fx.Node]]] = []

    def source(self) -> SourceLine | None:
        """The user's line that is running now."""
        return self.line if self.line is not None else user_line()

    # Nodes ------------------------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A new input, after those there are."""
        point: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        first = next(iter(self.graph.nodes), None)
        if self._last_placeholder is not None:
            point = self.graph.inserting_after(self._last_placeholder)
        elif first is not None:
            point = self.graph.inserting_before(first)
        with point:
            node = self.graph.placeholder(name)
        node.target = node.name  # unique, as an argument's name must be
        self._last_placeholder = node
        node.meta["val"] = self.snapshot(value)
        node.meta["mode"] = Mode()
        self.bind_symbols(node, value)
        return node

    def recount_placeholders(self) -> None:
        """Say again which input is the last, after they were put in another order."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        self._last_placeholder = inputs[-1] if inputs else None

    def attribute(self, stem: str, value: Any) -> fx.Node:
        """A node for `value`, kept as an attribute of the graph's module."""
        name = next((name for name, known in self.attributes.items() if known is value), None)
        if name is None:
            name = next(
                name
                for name in (f"{stem}_{count}" for count in itertools.count())
                if name not in self.attributes
            )
            self.attributes[name] = value
        # The attribute belongs to a module made at the end, which torch.fx cannot see yet.
        node = self.graph.create_node("get_attr", name)
        node.meta.update(mode=current_mode(), source=self.source(), region=self.region)
        return node

    def call(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        mode: Mode | None = None,
        value: Any = None,
    ) -> fx.Node:
        """A call of `target`; its value is computed with fakes unless `value` says it."""
        kwargs = kwargs or {}
        args, kwargs = trees.map_leaves(self._argument, (args, kwargs))
        if value is None:
            value = self.evaluate(target, args, kwargs)
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = self.snapshot(value)
        node.meta["mode"] = current_mode() if mode is None else mode
        if not _forward_mode_is_enabled():
            node.meta["forward"] = False
        node.meta["source"] = self.source()
        node.meta["region"] = self.region
        if self.hooks is not None:
            node.meta["hooks"] = self.hooks
        if self.grad_of is not None:
            node.meta.update(grad_of=self.grad_of, order=self.grad_of.order)
        return node

    def _argument(self, leaf: Any) -> Any:
        """`leaf` as an argument of a node: what cannot be written down is kept as an attribute."""
        if isinstance(leaf, symbols.SYMBOLIC):
            return self.number(leaf)
        if leaf is None or isinstance(leaf, _WRITABLE):
            return leaf
        node = self.attribute("object", leaf)
        node.meta["val"] = leaf
        return node

    def detach_for_users(self, node: fx.Node) -> None:
        """Let those that use `node` already use its value without its history."""
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
        value = node.meta["val"][index]
        return self.call(operator.getitem, (node, index), mode=node.meta["mode"], value=value)

    def evaluate(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The fake result of calling `target` on the values of nodes."""
        args, kwargs = trees.map_leaves(value_at, args), trees.map_leaves(value_at, kwargs)
        with self.quietly(), enable_python_dispatcher():
            return fake_call(target, args, kwargs)

    def snapshot(self, value: Any) -> Any:
        """`value` with each tensor as it is now: later changes of its shape do not show."""

        with self.quietly():
            return trees.map_leaves(
                lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value
            )

    # Shapes -----------------------------------------------------------------------------------

    def reshape(self, node: fx.Node, shape: Any, mode: Mode | None = None) -> fx.Node:
        """`node` in another shape, as a view where its strides allow one."""
        return self.view(aten.view.default, node, (list(shape),), {}, mode)

    def view(
        self,
        op: Callable[..., Any],
        node: fx.Node,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: Mode | None = None,
        value: Any = None,
    ) -> fx.Node:
        """A view of `node`; of a contiguous copy of it if its strides do not allow the view.

        A functional value may lie in memory otherwise than the tensor it stands for.
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
        """Say how to compute `symbol`, unless that is known already."""
        self._symbol_makers.setdefault(symbol, make)

    def bind_symbols(self, node: fx.Node, value: Any) -> None:
        """Symbols that first appear in `value` are computed from `node` from now on."""
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

    def number(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """A node, or a plain number, for a symbolic one."""
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
            if self.unbound is None:
                raise CaptureError(
                    f"size {missing.args[0]}",
                    "it is not the size of any input",
                    "pass the number, or a tensor of that size, as an argument",
                    self.source(),
                ) from None
            self._symbol_nodes[expr] = self.unbound(value)
            return self._symbol_nodes[expr]
        self._symbol_nodes[expr] = self._evaluated(expr, bindings)
        return self._symbol_nodes[expr]

    def _evaluated(self, expr: sympy.Basic, bindings: dict[sympy.Symbol, fx.Node]) -> fx.Node:
        """`expr` computed in the graph."""
        tracer = fx.proxy.GraphAppendingTracer(self.graph)
        proxies = {symbol: fx.Proxy(node, tracer) for symbol, node in bindings.items()}
        before = len(self.graph.nodes)
        node: fx.Node = symbols.evaluate(expr, proxies).node
        fresh = len(self.graph.nodes) - before
        for made in list(self.graph.nodes)[-fresh:] if fresh else []:
            arguments = trees.map_leaves(value_at, made.args)
            made.meta.update(val=made.target(*arguments), mode=Mode(), source=self.source())
        return node

    def number_nodes(self, tree: Any) -> Any:
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
        """A symbol that is no size, but that the size of something follows from."""
        for size, make in self._compound:
            whole = sympy.Dummy(integer=True)
            solution = symbols.solve(symbols.expression(size), symbol, whole)
            if solution is not None:
                others = [each for each in symbols.symbols_of(solution) if each != whole]
                if all(each in self._symbol_makers for each in others):
                    bindings = {each: self._symbol_node(each) for each in others}
                    return self._evaluated(solution, {**bindings, whole: make()})
        raise _Unbound(symbol)

    def _size_query(self, query: Callable[..., Any], node: fx.Node, axis: int) -> fx.Node:
        args = (node,) if axis < 0 else (node, axis)
        return self.call(query, args, mode=Mode())


def value_at(leaf: Any) -> Any:
    """The fake value of a node; anything else is itself."""
    return leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
