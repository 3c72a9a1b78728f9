"""Items: the tensors that kernels compute, their iteration order, and the elements they read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx
from typing_extensions import assert_never

from adjoint.graph.metadata import tensor_of
from adjoint.loops.expressions import Apply, Expression, Name, walk
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
    linear,
    of_axis,
    row_major,
)
from adjoint.lower.sizes import Size, is_one, product, sizes
from adjoint.lower.views import MultiIndex, dtype_of, rank_of, shape_of, view_of
from adjoint.rules.costs import functions_in
from adjoint.torch_private.symbols import same_number


def resolve(node: fx.Node, index: MultiIndex) -> tuple[fx.Node, MultiIndex]:
    """The tensor in memory behind a view, and the index of the element in it."""
    while (view := view_of(node)) is not None:
        node, through = view
        index = through(index)
    return node, index


def base_of(node: fx.Node) -> fx.Node:
    """The tensor in memory behind a view; a tensor that is no view is its own base."""
    while (view := view_of(node)) is not None:
        node = view[0]
    return node


def strides_of(node: fx.Node) -> tuple[Size, ...]:
    """The strides that kernels assume.

    An input that was expanded (stride 0) when it was captured, as cotangents often are, counts as
    contiguous: the next call may pass another layout, and a copy cannot have overlapping elements.
    Views that are library calls keep their strides.
    """
    shape, strides = shape_of(node), sizes(tensor_of(node).stride())
    if is_view(node):
        return strides
    if any(stride == 0 and not is_one(size) for stride, size in zip(strides, shape, strict=True)):
        return row_major(shape)
    return strides


def iteration_order(shape: Sequence[Size], strides: Sequence[Size]) -> tuple[int, ...]:
    """Dimensions by decreasing stride, without those of size 1."""
    dims = [dim for dim, size in enumerate(shape) if not is_one(size)]
    if all(isinstance(strides[dim], int) for dim in dims):
        # Stride 0 has no place in this order, so the dimensions keep theirs.
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
    """The iteration space: the sizes of the result, or of the source of a reduction or scatter."""
    order: tuple[int, ...]
    """Dimensions of the domain, from the slowest to the fastest."""
    reads: list[tuple[fx.Node, MultiIndex]] = field(default_factory=list)
    """The elements read, in terms of the axes of the domain."""
    applied: tuple[str, ...] = ()
    """The operators applied for one element."""
    checked: set[fx.Node] = field(default_factory=set)
    """Index tensors that must be checked before anything is read by them."""
    serial: bool = False
    """Iterations along the fastest dimension may update the same element of the result."""

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(f"{self.node.name}.{dim}", s) for dim, s in enumerate(self.domain))

    @functools.cached_property
    def index(self) -> MultiIndex:
        return tuple(of_axis(axis) for axis in self.axes)

    @functools.cached_property
    def shape(self) -> tuple[Size, ...]:
        return tuple(self.domain[dim] for dim in self.order)

    @functools.cached_property
    def count(self) -> Size:
        return product(self.domain)

    @functools.cached_property
    def columns(self) -> Size:
        """How many elements a reduction combines into one."""
        assert isinstance(self.definition, Reduced)
        return product([self.domain[dim] for dim in self.definition.dims])

    @functools.cached_property
    def reduces_rows(self) -> bool:
        """Whether this reduces the fastest dimensions, to one result for each row."""
        if not isinstance(self.definition, Reduced):
            return False
        dims = [dim for dim in self.order if dim in self.definition.dims]
        return not dims or self.order[-len(dims) :] == tuple(dims)

    @functools.cached_property
    def gathers(self) -> bool:
        """Whether it reads by indices that are loaded from memory."""
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
        """How many of the operators are costly."""
        return functions_in(self.applied)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return self.definition.bounds

    @property
    def is_reduction(self) -> bool:
        return not isinstance(self.definition, Mapped)

    def position(self, index: MultiIndex) -> Index:
        """The number of the iteration that computes an element of the result."""
        shape = shape_of(self.node)
        order = self.order
        if isinstance(self.definition, Reduced):
            # The iteration order is that of the source, whatever the strides of the result.
            kept = [dim for dim in range(len(self.domain)) if dim not in self.definition.dims]
            keepdim = len(shape) == len(self.domain)
            result_dims = {dim: dim if keepdim else place for place, dim in enumerate(kept)}
            order = tuple(result_dims[dim] for dim in self.order if dim in result_dims)
        return linear([index[dim] for dim in order], row_major([shape[dim] for dim in order]))


def element_of(
    node: fx.Node,
    index: MultiIndex,
    reader: Reader,
    read: Callable[[fx.Node, MultiIndex], Expression],
) -> Expression:
    """An element of a value: of a constant tensor, its formula; of any other, what `read` returns
    for the tensor in memory behind the views."""
    base, index = resolve(node, index)
    definition = definition_of(base) if base.target in CONSTANTS else None
    if isinstance(definition, Mapped):
        return definition.element(index, reader)
    return read(base, index)


class Recorder:
    """A reader that records which elements are read, and returns placeholders for them."""

    def __init__(self) -> None:
        self.reads: list[tuple[fx.Node, MultiIndex]] = []

    def read(self, node: fx.Node, index: MultiIndex) -> Expression:
        return element_of(node, index, self, self._record)

    def _record(self, base: fx.Node, index: MultiIndex) -> Expression:
        self.reads.append((base, index))
        return Name("?", dtype_of(base))

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
        item.serial = not any(fastest in set(each.axes()) for each in place)
        definition.start(tuple(Index() for _ in shape_of(node)), recorder)
    item.reads = recorder.reads
    item.applied = tuple(each.operator for each in walk(expression) if isinstance(each, Apply))
    return item


class _Inlining:
    """A reader that computes the elements of some tensors instead of reading them."""

    def __init__(self, reader: Reader, known: Mapping[fx.Node, Mapped]) -> None:
        self.reader = reader
        self.known = known
        self.elements: dict[tuple[fx.Node, MultiIndex], Expression] = {}

    def read(self, node: fx.Node, index: MultiIndex) -> Expression:
        base, index = resolve(node, index)
        found = self.known.get(base)
        if found is None:
            return self.reader.read(base, index)
        if (base, index) not in self.elements:
            self.elements[base, index] = found.element(index, self)
        return self.elements[base, index]

    def size(self, size: Size) -> Expression:
        return self.reader.size(size)

    def position(self, index: Index) -> Expression:
        return self.reader.position(index)


def with_inlined(item: Item, known: Mapping[fx.Node, Definition]) -> Item | None:
    """The item with the definitions of `known` inlined where it reads them.

    None: it reads one that is not elementwise.
    """
    read = {base for base, _ in item.reads} & known.keys()
    if not read:
        return item
    mapped = {node: each for node, each in known.items() if isinstance(each, Mapped)}
    if not read <= mapped.keys():
        return None
    bounds = [bound for node in read for bound in mapped[node].bounds]
    inlined = item_of(item.node, _inlined(item.definition, mapped, bounds))
    inlined.checked = item.checked | needs_of_tensors(bound.node for bound in bounds)
    return inlined


def _inlined(
    definition: Definition, known: Mapping[fx.Node, Mapped], bounds: Sequence[Bound]
) -> Definition:
    """The definition with others inlined, and with their `bounds`."""
    element = definition.element
    changed: Definition = replace(
        definition,
        element=lambda index, reader: element(index, _Inlining(reader, known)),
        bounds=(*definition.bounds, *bounds),
    )
    if isinstance(changed, Multiplied):
        left, right = changed.left, changed.right
        return replace(
            changed,
            left=lambda index, reader: left(index, _Inlining(reader, known)),
            right=lambda index, reader: right(index, _Inlining(reader, known)),
        )
    if not isinstance(changed, Scattered):
        return changed
    place, start = changed.place, changed.start
    return replace(
        changed,
        place=lambda index, reader: place(index, _Inlining(reader, known)),
        start=lambda index, reader: start(index, _Inlining(reader, known)),
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
            reduced = tuple(dim for dim in order if dim in dims)
            if order not in ((*kept, *reduced), (*reduced, *kept)):
                order = (*kept, *reduced)
            return Item(node, definition, domain, order)
        case Scattered(domain, source):
            if len(domain) == rank_of(source) and all(
                same_number(a, b) for a, b in zip(domain, shape_of(source), strict=True)
            ):
                return Item(node, definition, domain, iteration_order(domain, strides_of(source)))
            return Item(node, definition, domain, iteration_order(domain, row_major(domain)))
        case _:
            assert_never(definition)
