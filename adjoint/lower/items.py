"""Items: the tensors that kernels compute, in which order, and what they read for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from adjoint.loops.expressions import Apply, Expression, Name, walk
from adjoint.loops.show import identity_of
from adjoint.lower.calls import is_view, needs_of_tensors
from adjoint.lower.definitions import (
    CONSTANTS,
    Bound,
    Definition,
    Mapped,
    Multiplied,
    Reader,
    Reduced,
    Scattered,
    definition_of,
)
from adjoint.lower.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    linear,
    of_axis,
    row_major,
)
from adjoint.lower.sizes import Size, is_one, product, same, sizes
from adjoint.lower.views import Where, shape_of, view_of
from adjoint.rules.costs import functions_in


def resolve(node: fx.Node, index: Where) -> tuple[fx.Node, Where]:
    """The tensor that holds the element of a view, and where."""
    while (view := view_of(node)) is not None:
        node, through = view
        index = through(index)
    return node, index


def base_of(node: fx.Node) -> fx.Node:
    """The tensor that a view is of; any other is itself."""
    while (view := view_of(node)) is not None:
        node = view[0]
    return node


def strides_of(node: fx.Node) -> tuple[Size, ...]:
    """Those that kernels take for granted.

    An input that was expanded when it was captured, as a cotangent often is, may be any other in
    the next call; no copy could be laid out as it was.  A view that is called for repeats elements
    as its fake does.
    """
    shape, strides = shape_of(node), sizes(node.meta["val"].stride())
    if is_view(node):
        return strides
    if any(stride == 0 and not is_one(size) for stride, size in zip(strides, shape, strict=True)):
        return row_major(shape)
    return strides


def iteration_order(shape: Sequence[Size], strides: Sequence[Size]) -> tuple[int, ...]:
    """Dimensions from the slowest to the fastest; those of size 1 do not count."""
    dims = [dim for dim, size in enumerate(shape) if not is_one(size)]
    if all(isinstance(strides[dim], int) for dim in dims):
        # Where a stride is 0 the elements are the same: such a dimension may stand where it is.
        if any(strides[dim] == 0 for dim in dims):
            return tuple(dims)
        return tuple(sorted(dims, key=lambda dim: -int(strides[dim])))
    return tuple(dims)


@dataclass(eq=False)
class Item:
    """One node that a kernel computes."""

    node: fx.Node
    definition: Definition
    domain: tuple[Size, ...]
    """The sizes it iterates over: those of the tensor, or of what is reduced or scattered."""
    order: tuple[int, ...]
    """Dimensions of the domain, from the slowest to the fastest."""
    reads: list[tuple[fx.Node, Where]] = field(default_factory=list)
    """Elements read, by the axes of the domain."""
    applied: tuple[str, ...] = ()
    """The operators that an element takes."""
    checked: set[fx.Node] = field(default_factory=set)
    """Indices that must be known to be in range before anything is read by them."""
    serial: bool = False
    """Neighbours in the fastest dimension may meet in one element of the result."""

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(f"{self.node.name}.{dim}", s) for dim, s in enumerate(self.domain))

    @functools.cached_property
    def index(self) -> Where:
        return tuple(of_axis(axis) for axis in self.axes)

    @functools.cached_property
    def shape(self) -> tuple[Size, ...]:
        return tuple(self.domain[dim] for dim in self.order)

    @functools.cached_property
    def count(self) -> Size:
        return product(self.domain)

    @functools.cached_property
    def columns(self) -> Size:
        """Of a reduction: how many elements are combined into one, if they are neighbours."""
        assert isinstance(self.definition, Reduced)
        return product([self.domain[dim] for dim in self.definition.dims])

    @functools.cached_property
    def reduces_rows(self) -> bool:
        """A reduction of neighbours, which leaves one value for each row."""
        if not isinstance(self.definition, Reduced):
            return False
        dims = [dim for dim in self.order if dim in self.definition.dims]
        return not dims or self.order[-len(dims) :] == tuple(dims)

    @functools.cached_property
    def gathers(self) -> bool:
        """Where it reads depends on what it has read."""
        return any(
            isinstance(atom, Gathered)
            for _, index in self.reads
            for each in index
            for atom, _ in each.terms
        )

    @property
    def has_math(self) -> bool:
        return self.functions > 0

    @functools.cached_property
    def functions(self) -> int:
        """How many operators are functions, which cost as much as several others."""
        return functions_in(self.applied)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return self.definition.bounds

    @property
    def is_reduction(self) -> bool:
        return not isinstance(self.definition, Mapped)

    def position(self, index: Where) -> Index:
        """Where an element of the result comes in the order of its own iteration."""
        shape = shape_of(self.node)
        order = self.order
        if isinstance(self.definition, Reduced):
            # In the order of what is reduced, however the result itself lies.
            left = [dim for dim in range(len(self.domain)) if dim not in self.definition.dims]
            keeps = len(shape) == len(self.domain)
            places = {dim: dim if keeps else place for place, dim in enumerate(left)}
            order = tuple(places[dim] for dim in self.order if dim in places)
        return linear([index[dim] for dim in order], row_major([shape[dim] for dim in order]))


def constant_at(node: fx.Node, index: Where, reader: Reader) -> Expression | None:
    """An element of what is made of nothing: computed wherever it is read."""
    definition = definition_of(node) if node.target in CONSTANTS else None
    return definition.element(index, reader) if isinstance(definition, Mapped) else None


class Recorder:
    """Gives dummies for elements, and keeps which were asked for."""

    def __init__(self) -> None:
        self.reads: list[tuple[fx.Node, Where]] = []

    def read(self, node: fx.Node, index: Where) -> Expression:
        base, index = resolve(node, index)
        known = constant_at(base, index, self)
        if known is not None:
            return known
        self.reads.append((base, index))
        return Name("?", base.meta["val"].dtype)

    def size(self, size: Size) -> Expression:
        return Name("?", torch.int64)

    def position(self, index: Index) -> Expression:
        return Name("?", torch.int64)


def item_of(node: fx.Node, definition: Definition) -> Item:
    """The item that computes `node`."""
    item = _shaped(node, definition)
    recorder = Recorder()
    expression = definition.element(item.index, recorder)
    if isinstance(definition, Scattered):
        place = definition.place(item.index, recorder)
        fastest = item.axes[item.order[-1]] if item.order else None
        straight = [each for each in place if fastest in set(each.axes())]
        item.serial = not straight
        definition.start(tuple(Index() for _ in shape_of(node)), recorder)
    item.reads = recorder.reads
    item.applied = tuple(each.operator for each in walk(expression) if isinstance(each, Apply))
    return item


class _Reading:
    """Gives names for elements that say which they are."""

    def read(self, node: fx.Node, index: Where) -> Expression:
        base, index = resolve(node, index)
        known = constant_at(base, index, self)
        if known is not None:
            return known
        place = linear(index, row_major(shape_of(base)))
        return Name(f"{base.name}{_shown(place)}", base.meta["val"].dtype)

    def size(self, size: Size) -> Expression:
        return Name(str(size), torch.int64)

    def position(self, index: Index) -> Expression:
        return Name(_shown(index), torch.int64)


def _shown(index: Index) -> str:
    """The same for the same places, whichever item they are read for."""
    terms: list[str] = []
    for atom, coefficient in index.terms:
        match atom:
            case Axis(name):
                terms.append(f"{name.rpartition('.')[2]}*{coefficient}")
            case Quotient(of, by) | Remainder(of, by):
                terms.append(f"{type(atom).__name__}({_shown(of)},{by})*{coefficient}")
            case Gathered(value, _):
                terms.append(f"[{identity_of(value)}]*{coefficient}")
    return f"<{'+'.join(sorted(terms))}+{index.constant}>"


def text_of(item: Item) -> Any:
    """Items with the same text are the same tensor; what is scattered, or data checks, is its own.

    Elements of one tensor at one place have one name, so that two spellings of a derivative meet.
    """
    definition, node = item.definition, item.node
    if not isinstance(definition, Mapped) or definition.bounds:
        return node
    reader: Reader = _Reading()
    laid = (shape_of(node), strides_of(node), node.meta["val"].dtype)
    return (identity_of(definition.element(item.index, reader)), *laid)


class _Through:
    """A reader for which elements of some tensors are computed where they are read."""

    def __init__(self, reader: Reader, known: Mapping[fx.Node, Mapped]) -> None:
        self.reader = reader
        self.known = known
        self.made: dict[tuple[fx.Node, Where], Expression] = {}

    def read(self, node: fx.Node, index: Where) -> Expression:
        base, index = resolve(node, index)
        found = self.known.get(base)
        if found is None:
            return self.reader.read(base, index)
        if (base, index) not in self.made:
            self.made[base, index] = found.element(index, self)
        return self.made[base, index]

    def size(self, size: Size) -> Expression:
        return self.reader.size(size)

    def position(self, index: Index) -> Expression:
        return self.reader.position(index)


def reading_through(item: Item, known: Mapping[fx.Node, Definition]) -> Item | None:
    """The item with elements of `known` computed where it reads them; None if that cannot be."""
    read = {base for base, _ in item.reads} & known.keys()
    if not read:
        return item
    mapped = {node: each for node, each in known.items() if isinstance(each, Mapped)}
    if not read <= mapped.keys():
        return None
    bounds = [bound for node in read for bound in mapped[node].bounds]
    made = item_of(item.node, _through(item.definition, mapped, bounds))
    made.checked = item.checked | needs_of_tensors(bound.node for bound in bounds)
    return made


def _through(
    definition: Definition, known: Mapping[fx.Node, Mapped], bounds: Sequence[Bound]
) -> Definition:
    """The definition, reading through others; what they take for granted, it does as well."""
    element = definition.element
    changed: Definition = replace(
        definition,
        element=lambda index, reader: element(index, _Through(reader, known)),
        bounds=(*definition.bounds, *bounds),
    )
    if isinstance(changed, Multiplied):
        left, right = changed.left, changed.right
        return replace(
            changed,
            left=lambda index, reader: left(index, _Through(reader, known)),
            right=lambda index, reader: right(index, _Through(reader, known)),
        )
    if not isinstance(changed, Scattered):
        return changed
    place, start = changed.place, changed.start
    return replace(
        changed,
        place=lambda index, reader: place(index, _Through(reader, known)),
        start=lambda index, reader: start(index, _Through(reader, known)),
    )


def _shaped(node: fx.Node, definition: Definition) -> Item:
    match definition:
        case Mapped():
            shape = shape_of(node)
            return Item(node, definition, shape, iteration_order(shape, strides_of(node)))
        case Multiplied(domain):
            return Item(node, definition, domain, (0, 1, 2))
        case Reduced(domain, dims, source):
            order = iteration_order(domain, strides_of(source))
            kept = tuple(dim for dim in order if dim not in dims)
            gone = tuple(dim for dim in order if dim in dims)
            if order not in ((*kept, *gone), (*gone, *kept)):
                order = (*kept, *gone)
            return Item(node, definition, domain, order)
        case Scattered(domain, source):
            if len(domain) == source.meta["val"].dim() and all(
                same(a, b) for a, b in zip(domain, shape_of(source), strict=True)
            ):
                return Item(node, definition, domain, iteration_order(domain, strides_of(source)))
            return Item(node, definition, domain, iteration_order(domain, row_major(domain)))
