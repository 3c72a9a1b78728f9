"""Transposes: elements that are read along one direction, and stored along another.

    parallel for g in range(tiles):             a team of threads takes a tile of elements
        team tile0: f32[1056]
        vector for k in range(1024):            along the direction in which they lie in memory
            tile0[...] = x[...]
        vector for k in range(1024):            along that in which results are stored
            out[...] = tile0[...] + y[...]

So threads side by side read neighbours and store neighbours.  Past its last row or column a tensor
has that one once more: edges need no other code, and what is stored twice is the same.
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
from adjoint.lower.fusion import Group
from adjoint.lower.index import Axis, Gathered, Index, linear, of_axis
from adjoint.lower.items import strides_of
from adjoint.lower.nests import Builder
from adjoint.lower.operands import Checked, Nest
from adjoint.lower.sizes import Size, ceiling, estimate, product, quotient, simplified
from adjoint.lower.views import Where

TEAM = 256

# Elements along a side of a tile: of four bytes or more, and of fewer.
SIDE = 32
LONG_SIDE = 64

# What neighbouring threads read or store at a time, in bytes, so that each has a bank of its own.
BANK = 4

# Memory that a block may have, in bytes.
MOST_MEMORY = 48 << 10

# Elements so far apart, or nearer, count as neighbours.
NEAR = 4

# A shorter row is read whole, or nearly, by the threads that are at work at a time.
SHORTEST = 16

# What is smaller comes from a cache fast enough, however it is read.
LEAST_BYTES = 1 << 21


def transposed(group: Group, stored: set[fx.Node], shape: Sequence[Size]) -> Nest | str:
    """A kernel that goes through `shape` by tiles; or why not: "" if nothing is read across."""
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
        found: torch.dtype = self.node.meta["val"].dtype
        return found

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def step(self, axis: Axis) -> Size | None:
        """How far apart in memory neighbours along `axis` are; None if that varies."""
        for atom, _ in self.offset.terms:
            if isinstance(atom, Gathered):
                return None
            if not isinstance(atom, Axis) and axis in set(atom.of.axes()):
                return None
        return self.offset.coefficient(axis)

    def runs_along(self, axis: Axis) -> bool:
        step = self.step(axis)
        return isinstance(step, int) and 0 < abs(step) <= NEAR

    def runs_across(self, axis: Axis) -> bool:
        return self.step(axis) not in (0, None) and not self.runs_along(axis)


@dataclass(frozen=True)
class _Tiling:
    along: Axis
    """The direction in which results are stored."""
    across: Axis
    """That in which others are read."""
    staged: tuple[_Access, ...]
    side: int
    widths: dict[Axis, int]
    """How many neighbours a thread takes, in each direction."""


class _Tiles(Checked, Builder):
    def __init__(self, group: Group, stored: set[fx.Node], shape: Sequence[Size]) -> None:
        super().__init__(group, stored, None, shape=shape)
        self.inner = []
        self.loads: dict[int, tuple[Load, _Access]] = {}
        self.stores: list[_Access] = []
        self.staged: dict[_Access, Expression] = {}
        """What is read from memory of the team, and where."""
        self.places: dict[Axis, Index] = {}

    def load(self, node: fx.Node, index: Where) -> Expression:
        access = _Access(node, linear(index, strides_of(node)))
        if access in self.staged:
            return self.staged[access]
        made = super().load(node, index)
        assert isinstance(made, Load)
        self.loads[id(made)] = made, access
        return made

    def store(self, node: fx.Node, index: Where, value: Expression) -> Store:
        self.stores.append(_Access(node, linear(index, strides_of(node))))
        return super().store(node, index, value)

    def expression(self, index: Index) -> Expression:
        return super().expression(index.replaced(self.places))

    # What is read across

    def tiling(self) -> _Tiling | str:
        """How to go by tiles, or why not."""
        self.counters.update((axis, Counter(axis.name)) for axis in self.axes)
        # Not what is read in some places only: elsewhere there may be nothing to read.
        sure = [self.loads[id(each)][1] for each in _sure_loads(self._row())]
        ways = [axis for axis in self.axes if all(each.runs_along(axis) for each in self.stores)]
        if not ways:
            return ""
        along = ways[-1]
        found: dict[Axis, dict[_Access, None]] = {}
        for access in sure:
            if access.runs_across(along):
                for axis in (axis for axis in self.axes if access.runs_along(axis)):
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
            if estimate(axis.extent) < SHORTEST:
                return f"rows of {axis.extent} are short"
        count = estimate(self.group.count) * sum(each.itemsize for each in read)
        return f"{count} bytes are few" if count < LEAST_BYTES else ""

    def _sized(self, along: Axis, across: Axis, read: list[_Access]) -> _Tiling:
        least = min(each.itemsize for each in (*self.stores, *read))
        width = max(1, BANK // least)
        side = LONG_SIDE if width > 1 and _memory(read, LONG_SIDE) <= MOST_MEMORY else SIDE
        staged: list[_Access] = []
        for access in read:
            if _memory([*staged, access], side) <= MOST_MEMORY:
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
            return self._row()

        reading = self._over_tile(tiling, first, across, read)
        computing = self._over_tile(tiling, first, along, compute)
        memory = [TeamMemory(name, a.dtype, side * _pitch(side)) for a, name in names.items()]
        self.remarks.append(f"read across, by tiles of {side} x {side}")
        count = product([axis.extent for axis in grid])
        body = (*memory, *start, reading, computing)
        loop = Loop("g", integer(0), self.size(count), body, Mapping.PARALLEL)
        return self.nest("kernel", (loop,), team=TEAM, grid=Grid(count))

    def _loaded(self, access: _Access) -> Load:
        return Load(self.operand(access.node), self.position(access.offset), access.dtype)

    def _over_tile(
        self,
        tiling: _Tiling,
        first: dict[Axis, Expression],
        fast: Axis,
        made: Callable[[Expression], list[Statement]],
    ) -> Loop:
        """The elements of a tile, those along `fast` by neighbouring threads.

        `first`: the number of the tile in each direction.  `made`: statements for an element, with
        its place in memory of the team.
        """
        slow = tiling.across if fast is tiling.along else tiling.along
        side, width = tiling.side, tiling.widths[fast]
        threads, extent = side // width, quotient(fast.extent, width)
        assert extent is not None
        stores = fast is tiling.across
        # One name would say that both loops read the same.
        rows, groups = (
            Axis(f"{axis.name}.{'read' if stores else 'made'}", count)
            for axis, count in ((slow, slow.extent), (fast, extent))
        )
        neighbour = Axis("v", width)
        row, column = Name("row", torch.int64), Name("column", torch.int64)
        number, rest = (apply(how, Counter("k"), integer(threads)) for how in ("floordiv", "mod"))
        start = [
            *self._numbered(rows, first[slow] * side, row, number, side, stores),
            *self._numbered(groups, first[fast] * threads, column, rest, threads, stores),
        ]
        self.places = {slow: of_axis(rows), fast: of_axis(groups) * width + of_axis(neighbour)}
        self.counters |= {axis: Name(axis.name, torch.int64) for axis in (rows, groups)}
        self.counters[neighbour] = Counter("v")
        steps = {tiling.along: _pitch(side), tiling.across: 1}
        place = _times(row, steps[slow]) + _times(column, width * steps[fast])
        if width > 1:
            place = place + _times(Counter("v"), steps[fast])
        inside = made(place)
        if width > 1:
            inside = [Loop("v", integer(0), integer(width), tuple(inside))]
        body = (*start, *inside)
        return Loop("k", integer(0), integer(side * threads), body, Mapping.VECTOR)

    def _numbered(
        self, axis: Axis, first: Expression, name: Name, number: Expression, side: int, stores: bool
    ) -> list[Statement]:
        """A place in a tile, and which element of the tensor is there.

        Where a tile reaches beyond the tensor it has the last element once more.  All places are
        stored in, but only those of the tensor are read.
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


def _memory(accesses: Sequence[_Access], side: int) -> int:
    """Bytes of their tiles."""
    return sum(side * _pitch(side) * each.itemsize for each in accesses)


def _pitch(side: int) -> int:
    """From one row of a tile to the next: odd, so that columns, too, are in banks of their own."""
    return side + 1


def _sure_loads(body: Sequence[Statement]) -> Iterator[Load]:
    """Those that are read in any case."""
    seen: set[int] = set()
    work = [each for statement in walk(tuple(body)) for each in expressions(statement)]
    while work:
        expression = work.pop()
        if id(expression) in seen:
            continue
        seen.add(id(expression))
        if isinstance(expression, Load):
            yield expression
        unsure = expression.value if isinstance(expression, Guarded) else None
        work += [each for each in children(expression) if each is not unsure]
