"""Grids: the loops that compute one group where there are very many threads.

    parallel for r in range(rows):              a team of threads takes each row
        vector for c in range(columns / 4):     shared out among the team
            for v in range(4):                  neighbours, which are one access to memory

There are four forms, and one for transposes.  *Elements*: nothing is summed, and a thread takes a
few neighbours.  *Rows*: sums over columns, one team a row.  *Totals*: all is summed, one team a
chunk of the elements.  *Columns*: sums over rows, a thread for each column and chunk of the rows.
What is summed over rows is put together by a second kernel, always in the same order.  Scatters
meet in memory: a kernel before them makes it ready.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.loops.expressions import Counter, Expression, Extent, Load, Name, apply, integer
from adjoint.loops.plan import FULL_OCCUPANCY_THREADS, Grid, Scratch
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    Update,
)
from adjoint.loops.teams import WARP, max_unrolled_copies, trips_per_thread
from adjoint.lower.definitions import Mapped, Reduced, Scattered
from adjoint.lower.fusion import Group, Level
from adjoint.lower.index import Axis, linear, of_axis, row_major, unravelled
from adjoint.lower.items import Item
from adjoint.lower.nests import FEW_COLUMNS, Builder, cleared, kept_index, share
from adjoint.lower.operands import CHUNKS, Checked, Nest
from adjoint.lower.sizes import Size, estimate, product, quotient, same
from adjoint.lower.transposes import transposed
from adjoint.lower.views import Where, shape_of

# One access to memory, in bytes, and the most neighbours that one thread takes.
ACCESS = 16
MOST_NEIGHBOURS = 8

# With fewer threads than this, each takes one element: the machine is not full.
MANY_THREADS = 1 << 15

# Elements of a row that a thread takes, about: of rows that fit a warp; of longer ones; and where
# it keeps a sum over rows for each of them.
OF_SHORT_ROWS = 4
OF_LONG_ROWS = 16
OF_SUMMED_ROWS = 8

# Rows of so many columns or fewer are for a warp: its threads need not meet in memory.
FOR_A_WARP = 1024

# With so many rows there are threads enough.
MANY_ROWS = 2048

LARGEST_TEAM = 1024
TOTAL_TEAM = 256

# Rows that a thread adds up before its sum is worth a place in memory.
LEAST_ROWS = 16


def grids_of(group: Group, stored: set[fx.Node]) -> list[Nest]:
    """The kernels that compute `group`, in order; `stored` are the values that others need."""
    dry = _Grid(group, stored, group.shape, 1)
    dry.main()
    shape = [product([axis.extent for axis in run]) for run in dry.merged()]
    by_tiles = transposed(group, stored, shape)
    if isinstance(by_tiles, Nest):
        return [by_tiles]
    width = _width(group, shape)
    if width > 1:
        last = quotient(shape[-1], width)
        assert last is not None
        shape[-1:] = [last, width]
    before = ready_for(group, stored)
    after = [_Grid(group, stored, shape, width).put_together(item) for item in _sums(group)]
    main = _Grid(group, stored, shape, width)
    main.remarks += [by_tiles] if by_tiles else []
    return [*before, main.main(), *after]


def _sums(group: Group) -> list[Item]:
    """What is summed over rows."""
    members = group.members.values()
    return [i for i, at in members if at is Level.AFTER and isinstance(i.definition, Reduced)]


def ready_for(group: Group, stored: set[fx.Node]) -> list[Nest]:
    """Kernels that store what scatters of the group add to."""
    scatters = [item for item in group.items if isinstance(item.definition, Scattered)]
    alone = [Group(item.shape, members={item.node: (item, Level.AFTER)}) for item in scatters]
    return [_Grid(each, stored, each.shape, 1).ready(*each.items) for each in alone]


def _width(group: Group, shape: list[Size]) -> int:
    """How many neighbours a thread takes at a time."""
    if not shape:
        return 1
    least: int = min(node.meta["val"].dtype.itemsize for node in group.buffers())
    width = min(MOST_NEIGHBOURS, max(1, ACCESS // least))
    while width > 1:
        threads = estimate(group.count, 4 * MANY_THREADS) // width
        if quotient(shape[-1], width) is not None and threads >= MANY_THREADS:
            return width
        width //= 2
    return 1


class _Grid(Checked, Builder):
    def __init__(
        self, group: Group, stored: set[fx.Node], shape: list[Size] | tuple[Size, ...], width: int
    ) -> None:
        self.width = width
        self.summed = _sums(group)
        super().__init__(group, stored, None, shape=shape)
        self.lanes = [self.axes[-1]] if width > 1 else []
        outside = self.axes[: len(self.axes) - len(self.lanes)]
        self.outer = [(axis,) for axis in outside[: self.split]]
        self.inner = [(axis,) for axis in outside[self.split :]]
        self.rows = product([axis.extent for (axis,) in self.outer])
        self.columns = product([axis.extent for (axis,) in self.inner])
        self.counters.update((axis, Counter(axis.name)) for axis in self.lanes)
        self.team = self._team()
        rows = self.group.columns is not None
        self.set_columns = self.unfold(self.inner, Counter("c")) if rows else []

    def _split(self) -> int:
        if self.group.columns is not None:
            return self._place_before(self.group.columns)
        if self.summed:
            return self._place_before(self._kept())
        return len(self.axes)

    def _adds_all(self) -> bool:
        return bool(self.summed) and self._is_total(self.summed[0])

    def _kept(self) -> Size:
        return product(shape_of(self.summed[0].node))

    def _kept_rows(self) -> dict[fx.Node, Scratch]:
        """A row is in registers or in a cache: what is needed again is computed again."""
        return {}

    def _team(self) -> int:
        if self.group.columns is None:
            return TOTAL_TEAM if self._adds_all() else 1
        if isinstance(self.group.columns, int) and self.group.columns <= FEW_COLUMNS:
            return 1
        columns = estimate(self.columns) * self.width
        elements = OF_LONG_ROWS if columns > FOR_A_WARP else OF_SHORT_ROWS
        most = WARP if columns <= FOR_A_WARP else LARGEST_TEAM
        if self.summed and columns > OF_SUMMED_ROWS * WARP:
            elements, most = OF_SUMMED_ROWS, LARGEST_TEAM
        if estimate(self.rows, MANY_THREADS) < MANY_ROWS:
            elements, most = self.width, LARGEST_TEAM
        team = 4
        while team < most and team * elements < columns:
            team *= 2
        return team

    # The four forms

    def main(self) -> Nest:
        """The kernel that goes through the elements."""
        if self.group.columns is not None:
            return self._by_rows()
        if not self.summed:
            return self._by_elements()
        return self._by_chunks() if self._adds_all() else self._by_columns()

    def _by_elements(self) -> Nest:
        body = (*self.unfold(self.outer, Counter("r")), *self._row())
        return self._parallel("r", self.size(self.rows), body, Grid(self.rows))

    def _by_rows(self) -> Nest:
        if not self.summed:
            return self._by_elements()
        self.thread = Counter("t")
        before, after = self._sums_of_a_chunk()
        number = Name("r", torch.int64)
        row = (*self.unfold(self.outer, number), *self._row())
        body = (*before, self._every_so_many(number, row), *after)
        return self._parallel("t", Extent(CHUNKS), body, self._chunks())

    def _by_columns(self) -> Nest:
        columns = self.size(self.columns)
        self.thread = Name("t", torch.int64)
        column = Name("column", torch.int64)
        start = [
            Assign("t", apply("floordiv", Counter("g"), columns)),
            Assign("column", apply("mod", Counter("g"), columns)),
            *self.unfold(self.inner, column),
        ]
        before, after = self._sums_of_a_chunk()
        number = Name("r", torch.int64)
        row = (*self.unfold(self.outer, number), *self._row())
        body = (*start, *before, self._every_so_many(number, row), *after)
        return self._parallel("g", Extent(CHUNKS) * columns, body, self._chunks())

    def _by_chunks(self) -> Nest:
        self.thread = Counter("t")
        before, after = self._sums_of_a_chunk()
        row = (*self.unfold(self.outer, Counter("r")), *self._row())
        first, last = share(self.size(self.rows))
        body = (*before, Loop("r", first, last, row, Mapping.VECTOR), *after)
        return self._parallel("t", Extent(CHUNKS), body, self._chunks())

    def _chunks(self) -> Grid:
        """How rows are shared out."""
        if self.group.columns is not None:
            return Grid(1, True, self.rows, self.team, LEAST_ROWS)
        if self._adds_all():
            return Grid(1, True, self.rows, self.team, LEAST_ROWS * self.team)
        return Grid(self.columns, True, self.rows, self.columns, LEAST_ROWS)

    def _parallel(
        self, counter: str, stop: Expression, body: tuple[Statement, ...], grid: Grid
    ) -> Nest:
        loop = Loop(counter, integer(0), stop, body, Mapping.PARALLEL)
        return self.nest("kernel", (loop,), team=self.team, grid=grid)

    def _every_so_many(self, number: Name, row: tuple[Statement, ...]) -> Statement:
        """The rows of a chunk lie apart, so that neighbours in memory are read together."""
        chunks = Extent(CHUNKS)
        left = self.size(self.rows) - self.thread + chunks - 1
        turn = Assign(number.name, self.thread + Counter("q") * chunks)
        return Loop("q", integer(0), apply("floordiv", left, chunks), (turn, *row))

    # Columns

    def _around(self, inside: list[Statement]) -> list[Statement]:
        inside = self._neighbours(inside)
        if not inside or self.group.columns is None:
            return inside
        body = (*self.set_columns, *inside)
        return [Loop("c", integer(0), self.size(self.columns), body, Mapping.VECTOR)]

    def _neighbours(self, inside: list[Statement]) -> list[Statement]:
        if not inside or not self.lanes:
            return inside
        return [Loop(self.lanes[0].name, integer(0), integer(self.width), tuple(inside))]

    # Sums over rows, and scatters

    def _sums_of_a_chunk(self) -> tuple[list[Statement], list[Statement]]:
        """What is done for them before the rows of a chunk, and after."""
        before: list[Statement] = []
        after: list[Statement] = []
        first: list[Statement] = []
        last: list[Statement] = []
        for item in self.summed:
            definition, scratch = item.definition, self._partial(item)
            assert isinstance(definition, Reduced)
            total = Name(self._total(item), scratch.dtype)
            if self._is_total(item):
                before.append(Accumulator(total.name, definition.start))
                after.append(Store(self.operand(scratch), self.thread, total))
            elif self._is_kept_by_threads(item):
                first.append(Accumulator(total.name, definition.start, self._per()))
                last.append(Store(self.operand(scratch), self._place(item), total))
            else:
                before.append(cleared(self, scratch, self.thread, definition.start))
        return [*before, *self._around(first)], [*self._around(last), *after]

    def _per(self) -> tuple[tuple[str, int], ...]:
        """The loops in which a thread meets its columns."""
        lanes = [(axis.name, self.width) for axis in self.lanes]
        if self.group.columns is None:
            return tuple(lanes)
        assert isinstance(self.columns, int)
        return (("c", self.columns), *lanes)

    def _is_kept_by_threads(self, item: Item) -> bool:
        """A sum over rows of which each thread has the same few elements in every row."""
        if self.group.columns is None:
            return True
        if not isinstance(self.columns, int) or not same(
            product(shape_of(item.node)), self.group.columns
        ):
            return False
        copies = trips_per_thread(self.columns, self.team) * self.width
        return copies <= max_unrolled_copies(self.team)

    def _place(self, item: Item) -> Expression:
        """Where the thread adds to a sum over rows."""
        offset = linear(kept_index(item, self.index_of(item)), row_major(shape_of(item.node)))
        count = self.size(self._partial(item).count)
        return self.thread * count + self.position(offset)

    def _partial_sum(self, item: Item) -> Statement:
        definition, index = item.definition, self.index_of(item)
        assert not isinstance(definition, Mapped)
        if isinstance(definition, Scattered):
            return self.scattered(item, index)
        value = definition.element(index, self)
        if self._is_total(item) or self._is_kept_by_threads(item):
            return Update(self._total(item), definition.operator, value)
        name = self.operand(self._partial(item))
        return Merge(name, self._place(item), definition.operator, value)

    def ready(self, item: Item) -> Nest:
        """What a scatter finds before it adds to it."""
        definition = item.definition
        assert isinstance(definition, Scattered)
        count = product(shape_of(item.node))
        index = self._element_of(item, Counter("k"))
        body = (self.store(item.node, index, definition.start(index, self)),)
        self.team = 1
        return self._parallel("k", self.size(count), body, Grid(count))

    def put_together(self, item: Item) -> Nest:
        """The sum of what all chunks have."""
        chunks = self._chunks()
        definition, scratch = item.definition, self._partial(item)
        assert isinstance(definition, Reduced)
        name, count = self.operand(scratch), product(shape_of(item.node))
        width = 4 if quotient(count, 4) is not None else 1
        groups = quotient(count, width)
        assert groups is not None
        first: list[Statement] = []
        adding: list[Statement] = []
        last: list[Statement] = []
        for neighbour in range(width):
            whole = Name(f"whole{neighbour}", scratch.dtype)
            k = Counter("k") * integer(width) + integer(neighbour) if width > 1 else Counter("k")
            part = Load(name, Counter("c") * self.size(count) + k, scratch.dtype)
            first.append(Accumulator(whole.name, definition.start))
            adding.append(Update(whole.name, definition.operator, part))
            last.append(self._finished(item, self._element_of(item, k), whole))
        sums = Loop("c", integer(0), Extent(CHUNKS), tuple(adding), Mapping.VECTOR)
        # There are no more chunks than keep the machine busy.
        most = FULL_OCCUPANCY_THREADS // max(1, estimate(chunks.threads))
        self.team = min(TOTAL_TEAM, 1 << max(0, most.bit_length() - 1))
        grid = Grid(groups, False, chunks.rows, chunks.threads, chunks.min_rows)
        return self._parallel("k", self.size(groups), (*first, sums, *last), grid)

    def _element_of(self, item: Item, number: Expression) -> Where:
        """The element of a result that has this number."""
        axis = Axis("k", product(shape_of(item.node)))
        self.counters = {axis: number}
        return tuple(unravelled(of_axis(axis), shape_of(item.node)))
