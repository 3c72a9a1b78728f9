"""Transposes: loads that are contiguous along one axis, and stores along another.

    parallel for g in range(tiles):             a team of threads computes a tile of elements
        team tile0: f32[1056]                   in shared memory
        vector for k in range(1024):            along the axis in which loads are contiguous
            tile0[...] = x[...]
        vector for k in range(1024):            along the axis in which stores are contiguous
            out[...] = tile0[...] + y[...]

Both loads and stores are coalesced.  Tiles that reach beyond the last row or column clamp their
indices: elements at the edge are computed more than once, and the same value is stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.loops.expressions import (
    Counter,
    Expression,
    Guarded,
    Load,
    Name,
    apply,
    children,
    integer,
)
from adjoint.loops.plan import Grid
from adjoint.loops.statements import (
    Assign,
    Loop,
    Mapping,
    Statement,
    Store,
    TeamMemory,
    expressions,
    walk,
)
from adjoint.lower.definitions import Mapped
from adjoint.lower.groups import Group
from adjoint.lower.index import Axis, Gathered, Index, linear, of_axis
from adjoint.lower.items import strides_of
from adjoint.lower.nests import Builder
from adjoint.lower.operands import Checked, Nest
from adjoint.lower.sizes import Size, ceiling, estimate, product, quotient, simplified
from adjoint.lower.views import MultiIndex, dtype_of

TEAM_THREADS = 256

# Elements along a side of a tile, for elements of at least BANK_BYTES and for smaller ones.
TILE_SIDE_ELEMENTS = 32
LONG_TILE_SIDE_ELEMENTS = 64

# The width of a bank of shared memory.
BANK_BYTES = 4

MAX_SHARED_BYTES = 48 << 10

# Accesses with at most this stride, in elements, count as contiguous.
MAX_CONTIGUOUS_STRIDE = 4

# Shorter rows are in the cache as a whole while threads read across them.
MIN_ROW_ELEMENTS = 16

# Less data is in the cache, and fast to read in any order.
MIN_BYTES_TO_TILE = 1 << 21


def transposed(group: Group, stored: set[fx.Node], shape: Sequence[Size]) -> Nest | str:
    """A kernel that transposes by tiles; or why there is none: "" if nothing is transposed."""
    if len(shape) < 2 or not all(isinstance(item.definition, Mapped) for item in group.items):
        return ""
    tiling = _Tiles(group, stored, shape).tiling()
    return tiling if isinstance(tiling, str) else _Tiles(group, stored, shape).main(tiling)


@dataclass(frozen=True)
class _Access:
    node: fx.Node
    offset: Index

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.node)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def stride(self, axis: Axis) -> Size | None:
        """The stride along `axis`; None if it is not constant."""
        for atom, _ in self.offset.terms:
            if isinstance(atom, Gathered):
                return None
            if not isinstance(atom, Axis) and axis in set(atom.of.axes()):
                return None
        return self.offset.coefficient(axis)

    def is_coalesced(self, axis: Axis) -> bool:
        """Whether threads along `axis` access contiguous elements."""
        stride = self.stride(axis)
        return isinstance(stride, int) and 0 < abs(stride) <= MAX_CONTIGUOUS_STRIDE

    def is_strided(self, axis: Axis) -> bool:
        """Whether threads along `axis` access elements that are far apart."""
        return self.stride(axis) not in (0, None) and not self.is_coalesced(axis)


@dataclass(frozen=True)
class _Tiling:
    along: Axis
    """The axis along which stores are coalesced."""
    across: Axis
    """The axis along which transposed loads are coalesced."""
    staged: tuple[_Access, ...]
    """Loads that go through shared memory."""
    side: int
    widths: dict[Axis, int]
    """How many adjacent elements a thread accesses, along each axis."""


class _Tiles(Checked, Builder):
    def __init__(self, group: Group, stored: set[fx.Node], shape: Sequence[Size]) -> None:
        super().__init__(group, stored, None, shape=shape)
        self.inner = []
        self.loads: dict[int, tuple[Load, _Access]] = {}
        self.stores: list[_Access] = []
        self.staged: dict[_Access, Expression] = {}
        """Loads that are in shared memory, and their elements there."""
        self.substituted: dict[Axis, Index] = {}
        """Indices of axes in terms of those of the current loop."""

    def load(self, node: fx.Node, index: MultiIndex) -> Expression:
        access = _Access(node, linear(index, strides_of(node)))
        if access in self.staged:
            return self.staged[access]
        load = super().load(node, index)
        assert isinstance(load, Load)
        self.loads[id(load)] = load, access
        return load

    def store(self, node: fx.Node, index: MultiIndex, value: Expression) -> Store:
        self.stores.append(_Access(node, linear(index, strides_of(node))))
        return super().store(node, index, value)

    def expression(self, index: Index) -> Expression:
        return super().expression(index.replaced(self.substituted))

    # The choice of axes

    def tiling(self) -> _Tiling | str:
        """The axes of tiles, and the loads that go through shared memory; or why not."""
        self.counters.update((axis, Counter(axis.name)) for axis in self.axes)
        # Not conditional loads: elsewhere their addresses may be out of bounds.
        loads = [self.loads[id(each)][1] for each in _unconditional_loads(self.row())]
        axes = [axis for axis in self.axes if all(s.is_coalesced(axis) for s in self.stores)]
        if not axes:
            return ""
        along = axes[-1]
        found: dict[Axis, dict[_Access, None]] = {}
        for access in loads:
            if access.is_strided(along):
                for axis in (axis for axis in self.axes if access.is_coalesced(axis)):
                    found.setdefault(axis, {})[access] = None
        if not found:
            return ""
        across = max(found, key=lambda axis: sum(each.itemsize for each in found[axis]))
        why = self._why_not(along, across, list(found[across]))
        if why:
            return f"read across, but not by tiles: {why}"
        return self._sized(along, across, list(found[across]))

    def _why_not(self, along: Axis, across: Axis, read: list[_Access]) -> str:
        for axis in (along, across):
            if estimate(axis.extent) < MIN_ROW_ELEMENTS:
                return f"rows of {axis.extent} are short"
        count = estimate(self.group.count) * sum(each.itemsize for each in read)
        return f"{count} bytes are few" if count < MIN_BYTES_TO_TILE else ""

    def _sized(self, along: Axis, across: Axis, read: list[_Access]) -> _Tiling:
        smallest = min(each.itemsize for each in (*self.stores, *read))
        width = max(1, BANK_BYTES // smallest)
        fits = _shared_bytes(read, LONG_TILE_SIDE_ELEMENTS) <= MAX_SHARED_BYTES
        side = LONG_TILE_SIDE_ELEMENTS if width > 1 and fits else TILE_SIDE_ELEMENTS
        staged: list[_Access] = []
        for access in read:
            if _shared_bytes([*staged, access], side) <= MAX_SHARED_BYTES:
                staged.append(access)
        widths = {
            axis: width if quotient(axis.extent, width) is not None else 1
            for axis in (along, across)
        }
        return _Tiling(along, across, tuple(staged), side, widths)

    # Loops

    def main(self, tiling: _Tiling) -> Nest:
        """The kernel."""
        along, across, side = tiling.along, tiling.across, tiling.side
        outside = [axis for axis in self.axes if axis not in (along, across)]
        tiles = {a: Axis(f"{a.name}.tile", ceiling(a.extent, side)) for a in (across, along)}
        grid = [*outside, *tiles.values()]
        start = self.unfold([(axis,) for axis in grid], Counter("g"))
        first = {axis: self.counters[tile] for axis, tile in tiles.items()}
        names = {access: f"tile{place}" for place, access in enumerate(tiling.staged)}

        def read(place: Expression) -> list[Statement]:
            return [Store(name, place, self._loaded(access)) for access, name in names.items()]

        def compute(place: Expression) -> list[Statement]:
            self.staged = {a: Load(name, place, a.dtype) for a, name in names.items()}
            return self.row()

        reading = self._over_tile(tiling, first, across, read)
        computing = self._over_tile(tiling, first, along, compute)
        memory = [TeamMemory(name, a.dtype, side * _pitch(side)) for a, name in names.items()]
        self.remarks.append(f"read across, by tiles of {side} x {side}")
        count = product([axis.extent for axis in grid])
        body = (*memory, *start, reading, computing)
        loop = Loop("g", integer(0), self.size(count), body, Mapping.PARALLEL)
        return self.nest("kernel", (loop,), team=TEAM_THREADS, grid=Grid(count))

    def _loaded(self, access: _Access) -> Load:
        return Load(self.operand(access.node), self.position(access.offset), access.dtype)

    def _over_tile(
        self,
        tiling: _Tiling,
        first: dict[Axis, Expression],
        fast: Axis,
        statements: Callable[[Expression], list[Statement]],
    ) -> Loop:
        """A loop over the elements of a tile, in which adjacent threads are adjacent along `fast`.

        `first`: the number of the tile along each axis.  `statements`: those for an element,
        given its offset in shared memory.
        """
        slow = tiling.across if fast is tiling.along else tiling.along
        side, width = tiling.side, tiling.widths[fast]
        threads, extent = side // width, quotient(fast.extent, width)
        assert extent is not None
        stores = fast is tiling.across
        # Different names in the two loops, so that loads of one are not taken for the other's.
        rows, groups = (
            Axis(f"{axis.name}.{'read' if stores else 'made'}", count)
            for axis, count in ((slow, slow.extent), (fast, extent))
        )
        lane = Axis("v", width)
        row, column = Name("row", torch.int64), Name("column", torch.int64)
        number, rest = (apply(how, Counter("k"), integer(threads)) for how in ("floordiv", "mod"))
        start = [
            *self._numbered(rows, first[slow] * side, row, number, side, stores),
            *self._numbered(groups, first[fast] * threads, column, rest, threads, stores),
        ]
        self.substituted = {slow: of_axis(rows), fast: of_axis(groups) * width + of_axis(lane)}
        self.counters |= {axis: Name(axis.name, torch.int64) for axis in (rows, groups)}
        self.counters[lane] = Counter("v")
        steps = {tiling.along: _pitch(side), tiling.across: 1}
        place = _times(row, steps[slow]) + _times(column, width * steps[fast])
        if width > 1:
            place = place + _times(Counter("v"), steps[fast])
        inside = statements(place)
        if width > 1:
            inside = [Loop("v", integer(0), integer(width), tuple(inside))]
        body = (*start, *inside)
        return Loop("k", integer(0), integer(side * threads), body, Mapping.VECTOR)

    def _numbered(
        self, axis: Axis, first: Expression, name: Name, number: Expression, side: int, stores: bool
    ) -> list[Statement]:
        """Assign a position in the tile, and the index of the element there, clamped to the tensor.

        The loop that `stores` fills the whole tile, and clamps the index.  The other clamps the
        position, so that it reads only elements of the tensor.
        """
        element = first + name
        if not isinstance(axis.extent, int) or axis.extent % side:
            last = self.size(simplified(axis.extent - 1))
            if stores:
                element = apply("minimum", element, last)
            else:
                number = apply("minimum", number, last - first)
        return [Assign(name.name, number), Assign(axis.name, element)]


def _times(value: Expression, by: int) -> Expression:
    return value if by == 1 else value * by


def _shared_bytes(accesses: Sequence[_Access], side: int) -> int:
    """Shared memory for tiles of these loads."""
    return sum(side * _pitch(side) * each.itemsize for each in accesses)


def _pitch(side: int) -> int:
    """The stride between rows of a tile: odd, so that columns have no bank conflicts either."""
    return side + 1


def _unconditional_loads(body: Sequence[Statement]) -> Iterator[Load]:
    seen: set[int] = set()
    work = [each for statement in walk(tuple(body)) for each in expressions(statement)]
    while work:
        expression = work.pop()
        if id(expression) in seen:
            continue
        seen.add(id(expression))
        if isinstance(expression, Load):
            yield expression
        conditional = expression.value if isinstance(expression, Guarded) else None
        work += [each for each in children(expression) if each is not conditional]
