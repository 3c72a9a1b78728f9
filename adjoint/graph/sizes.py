"""Assumptions about symbolic sizes, their guards, and retracing a graph for other sizes.

A captured graph of symbolic sizes is valid for all sizes.  A derivative rule, or lowering, may
branch on a size: the branch is taken for the sizes that the graph was captured with, and what was
compiled is valid only for sizes that take the same branch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sympy
import torch
from torch import fx

from adjoint.graph.copying import GraphCopy
from adjoint.graph.evaluation import call_on_fakes
from adjoint.graph.metadata import (
    has_value,
    inputs_of,
    set_value,
    value_of,
    value_or_none,
)
from adjoint.graph.operations import has_bodies
from adjoint.open_types import TorchValue
from adjoint.torch_private import (
    size_evaluation,
    size_guards,
    symbols,
    trees,
)
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import FakeTensorMode, fake_mode_of, new_fake_mode
from adjoint.torch_private.modes import enable_python_dispatcher
from adjoint.torch_private.size_guards import ShapeEnv

Sizes: TypeAlias = symbols.Sizes
Renaming: TypeAlias = dict[sympy.Symbol, object]


@contextlib.contextmanager
def assuming(graph_module: fx.GraphModule) -> Iterator[None]:
    """Keep sizes symbolic, and record each branch on one as an assumption."""
    shape_env = fake_mode_of(graph_module).shape_env
    with (
        general_shapes(),
        size_guards.allow_data_dependent_sizes(shape_env),
        size_guards.assumptions(shape_env),
    ):
        yield


def size_hints(graph: fx.Graph) -> Sizes:
    """For each size symbol, its value in the call that was captured, or a guess."""
    found: Sizes = {}
    for node in graph.nodes:
        for leaf in trees.leaves(value_or_none(node)):
            for size in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
                if isinstance(size, torch.SymInt):
                    symbol = symbols.expression(size)
                    if isinstance(symbol, sympy.Symbol):
                        found.setdefault(symbol, symbols.hint(size))
    return found


class Sizing:
    """The size symbols of a graph's inputs, and the assumptions about them."""

    def __init__(
        self, graph_module: fx.GraphModule, assumed: Sequence[sympy.Basic] | None = None
    ) -> None:
        """`assumed`: the assumptions; None: all recorded for these symbols, now and later."""
        inputs = inputs_of(graph_module.graph)
        self._shown = symbols.symbol_positions(value_or_none(node) for node in inputs)
        if assumed is None:
            assumed = size_guards.assumed(fake_mode_of(graph_module).shape_env)
        self.assumptions = assumed
        """A list that may grow."""
        self._symbols = frozenset(symbol for symbol, _, _ in self._shown)
        self._known: tuple[int, Sizes] | None = None
        """The number of assumptions, and sizes that satisfied them all: most calls repeat these."""

    def of(self, inputs: Sequence[TorchValue]) -> Sizes:
        """The value of each size symbol for `inputs`."""
        if not self._shown:
            return {}
        return {
            symbol: inputs[place] if axis is None else inputs[place].shape[axis]
            for symbol, place, axis in self._shown
        }

    def is_known_by(self, sizes: Sizes) -> bool:
        """Whether `sizes` has the value of each size symbol."""
        return sizes.keys() >= self._symbols

    def violated(self, sizes: Sizes) -> str | None:
        """An assumption that `sizes` violate; None if all hold."""
        asked = (len(self.assumptions), sizes)
        if asked == self._known:
            return None
        wrong = size_evaluation.first_violated(self.assumptions, sizes)
        if wrong is None:
            self._known = (len(self.assumptions), dict(sizes))
        return wrong


class Guards:
    """The guards of a captured program on sizes and strides of its inputs.

    Each branch that the program or its derivative took while it was captured is a guard.
    """

    def __init__(self, values: Sequence[object], shape_env: ShapeEnv | None) -> None:
        """`values` are the fakes of the inputs."""
        self._shown = symbols.symbol_positions(values)
        self._strides = symbols.stride_symbol_positions(values)
        self._numbers = [
            (place, _numbers_of(each), each.layout is torch.strided)
            for place, each in enumerate(values)
            if isinstance(each, torch.Tensor)
        ]
        """For each tensor: its position, its sizes and strides, and whether it has strides."""
        self._shape_env = shape_env
        self._assumed: list[sympy.Basic] = []
        self.close()

    @property
    def sizes(self) -> list[tuple[sympy.Symbol, int, int | None]]:
        """Each size symbol, the input that has it, and the axis."""
        return self._shown

    @property
    def conditions(self) -> list[sympy.Basic]:
        """What holds for the sizes that the program can be called with."""
        return self._assumed

    def layouts(self) -> dict[int, tuple[int | sympy.Expr, ...]]:
        """For each input that is a tensor, its sizes and then its strides."""
        return {place: numbers for place, numbers, _ in self._numbers}

    def close(self) -> None:
        """Take the branches recorded so far as guards, and none recorded later."""
        if self._shape_env is not None:
            shown = dict.fromkeys(symbol for symbol, _, _ in self._shown)
            bounds = size_guards.never_zero(self._shape_env, shown)
            self._assumed = [*size_guards.guards_of(self._shape_env), *bounds]

    def hold(self, inputs: Sequence[TorchValue]) -> bool:
        """Whether all guards hold for `inputs`."""
        sizes: Sizes = {}
        for symbol, place, axis in self._shown:
            sizes[symbol] = inputs[place].shape[axis] if axis is not None else inputs[place]
        for symbol, place, axis in self._strides:
            sizes.setdefault(symbol, inputs[place].stride(axis))
        for place, expected, is_strided in self._numbers:
            real = inputs[place]
            numbers = (*real.shape, *real.stride()) if is_strided else tuple(real.shape)
            if numbers != expected and not _are(numbers, expected, sizes):
                return False
        return size_evaluation.first_violated(self._assumed, sizes) is None


def _numbers_of(fake: torch.Tensor) -> tuple[int | sympy.Expr, ...]:
    """The sizes and strides of a fake tensor."""
    numbers = (*fake.shape, *fake.stride()) if fake.layout is torch.strided else fake.shape
    found = ((symbols.unsimplified(number), number) for number in numbers)
    return tuple(number if expr is None else expr for expr, number in found)


def _are(numbers: Sequence[int], expected: Sequence[int | sympy.Expr], sizes: Sizes) -> bool:
    """Whether numbers equal the expected expressions, given the values `sizes` of symbols."""
    if len(numbers) != len(expected):
        return False
    for number, size in zip(numbers, expected, strict=True):
        if isinstance(size, sympy.Symbol):
            if sizes.get(size) != number:
                return False
        elif size != number:
            if isinstance(size, int) or not size.free_symbols <= sizes.keys():
                return False
            if size_evaluation.value_of(size, sizes) != number:
                return False
    return True


class NotResizable(Exception):
    """The graph cannot be retraced: a part of it is specific to the sizes of its capture."""


def resized(graph_module: fx.GraphModule, sizes: Sizes) -> tuple[fx.GraphModule, Renaming]:
    """A copy retraced for `sizes` with new symbols, and these by the graph's own symbols.

    The copy assumes only what holds for `sizes`.
    """
    fake_mode = new_fake_mode()
    assert fake_mode.shape_env is not None
    new: dict[sympy.Symbol, object] = {**symbols.fresh_symbols(fake_mode.shape_env, sizes)}
    with general_shapes(), size_guards.assumptions(fake_mode.shape_env):
        copy = _copied(graph_module, fake_mode, new)
    written = {symbol: symbols.unsimplified(number) for symbol, number in new.items()}
    return copy, {s: sympy.Integer(sizes.get(s, 0)) if e is None else e for s, e in written.items()}


def renamed(sizes: Sizes, names: Renaming | None) -> Sizes:
    """`sizes` by the symbols of a retraced graph; `names` None: of the graph itself."""
    if names is None:
        return sizes
    found: Sizes = {}
    for symbol, size in sizes.items():
        name = names.get(symbol, symbol)
        # Several symbols may have become one constant: keep the size that differs from it.
        if name not in found or size != name:
            found[name] = size
    return found


def _copied(
    graph_module: fx.GraphModule, fake_mode: FakeTensorMode, new: dict[sympy.Symbol, object]
) -> fx.GraphModule:
    copying = GraphCopy(graph_module)
    values: dict[fx.Node, TorchValue] = {}
    bodies: dict[str, fx.GraphModule] = {}
    with fake_mode, enable_python_dispatcher(), torch.no_grad():
        for node in graph_module.graph.nodes:
            copy = copying.add(node)
            if node.op == "output":
                continue
            if node.op == "placeholder":
                values[node] = _like(value_or_none(node), new, fake_mode)
            elif node.op == "get_attr":
                values[node] = _constant(graph_module, node, fake_mode, new)
                if isinstance(values[node], fx.GraphModule):
                    bodies[str(node.target)] = values[node]
            elif has_bodies(node):
                # Its results have the sizes that they had, in new symbols; the body need not run.
                values[node] = tuple(_like(each, new, fake_mode) for each in value_of(node))
            else:
                size_guards.guard_open_decisions(
                    node.target, *fx.map_arg((node.args, node.kwargs), values.get)
                )
                values[node] = call_on_fakes(node, values)
                _learn(value_or_none(node), values[node], new)
            if has_value(node):
                set_value(copy, values[node])
    made = copying.finish()
    for name, body in bodies.items():
        setattr(made, name, body)
    return made


def _learn(before: object, now: object, new: dict[sympy.Symbol, object]) -> None:
    """Map the data-dependent sizes of a result to the new symbols that retracing gave them."""
    for old, value in zip(trees.leaves(before), trees.leaves(now), strict=True):
        is_tensor = isinstance(old, torch.Tensor)
        sizes = zip(old.shape, value.shape, strict=True) if is_tensor else [(old, value)]
        for size, fresh in sizes:
            expr = symbols.unsimplified(size)
            if isinstance(expr, sympy.Symbol) and symbols.is_unbacked(expr):
                new.setdefault(expr, fresh)


def _like(value: object, new: dict[sympy.Symbol, object], fake_mode: FakeTensorMode) -> object:
    """A fake like `value`, with sizes in the new symbols."""

    def number(size: object) -> TorchValue:
        expr = symbols.unsimplified(size)
        if expr is None:
            return size
        for symbol in expr.free_symbols - new.keys():
            if fake_mode.shape_env is None or not symbols.is_unbacked(symbol):
                raise NotResizable(f"the size {expr} is that of no input")
            is_size = isinstance(value, torch.Tensor)
            made = symbols.unbacked_size if is_size else symbols.unbacked_int
            new[symbol] = made(fake_mode.shape_env)
        return size_evaluation.evaluate(expr, new)

    if not isinstance(value, torch.Tensor):
        return number(value)
    if value.layout is not torch.strided:
        raise NotResizable(f"an input has the layout {value.layout}")
    return torch.empty_strided(
        [number(size) for size in value.shape],
        [number(stride) for stride in value.stride()],
        dtype=value.dtype,
        device=value.device,
    )


def _constant(
    graph_module: fx.GraphModule,
    node: fx.Node,
    fake_mode: FakeTensorMode,
    new: dict[sympy.Symbol, object],
) -> object:
    value = getattr(graph_module, str(node.target))
    if isinstance(value, fx.GraphModule):
        return _copied(value, fake_mode, new)
    return trees.map_leaves(
        lambda leaf: (
            fake_mode.from_tensor(leaf, static_shapes=True)
            if isinstance(leaf, torch.Tensor)
            else leaf
        ),
        value,
    )
