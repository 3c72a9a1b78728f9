"""Loop nests for the GPU: the kernels that compute one fusion group.

    parallel for r in range(rows):              a team of threads computes a row
        vector for c in range(columns / 4):     divided among the team
            for v in range(4):                  adjacent elements, one vector access

There are four forms; `lower/transposes.py` and `lower/products.py` have two more.

- *elements*: no reduction; a thread computes a few adjacent elements;
- *rows*: reductions over columns; a team for each row;
- *totals*: a reduction of everything; a team for each chunk of the elements;
- *columns*: reductions over rows; a thread for each column and each chunk of rows.

A second kernel combines the partial results of chunks, always in the same order.  Scatters are
atomic updates of the result, which a kernel before them initializes.
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
from adjoint.lower.groups import Group, Level
from adjoint.lower.index import Axis, linear, of_axis, row_major, unravelled
from adjoint.lower.items import Item
from adjoint.lower.nests import MAX_UNVECTORIZED_COLUMNS, Builder
from adjoint.lower.operands import CHUNKS, Checked, Nest
from adjoint.lower.partial_sums import cleared, kept_index, share
from adjoint.lower.sizes import Size, estimate, product, quotient
from adjoint.lower.transposes import transposed
from adjoint.lower.views import MultiIndex, dtype_of, shape_of
from adjoint.torch_private.symbols import same_number

# The widest vector access, and the most adjacent elements that one thread computes.
VECTOR_BYTES = 16
MAX_VECTOR_ELEMENTS = 8

# With fewer threads each computes one element, for more occupancy.
MIN_THREADS_TO_VECTORIZE = 1 << 15

# Elements of a row for each thread, roughly: in rows for a warp, in longer rows, and in rows where
# the thread keeps a partial sum for each of its columns.
SHORT_ROW_ELEMENTS = 4
LONG_ROW_ELEMENTS = 16
SUMMED_ROW_ELEMENTS = 8

# Rows of at most this many columns are for a warp, which needs no shared memory to reduce.
MAX_WARP_COLUMNS = 1024

# With fewer rows, teams are larger, for more occupancy.
MIN_ROWS_FOR_OCCUPANCY = 2048

MAX_TEAM_THREADS = 1024
TOTAL_TEAM_THREADS = 256

# The fewest rows that a thread reduces to one partial result.
MIN_CHUNK_ROWS = 16


def grid_nests(group: Group, stored: set[fx.Node]) -> list[Nest]:
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
    before = scatter_starts(group, stored)
    after = [_Grid(group, stored, shape, width).combine(item) for item in _row_sums(group)]
    main = _Grid(group, stored, shape, width)
    main.remarks += [by_tiles] if by_tiles else []
    return [*before, main.main(), *after]


def _row_sums(group: Group) -> list[Item]:
    """The reductions over rows."""
    members = group.members.values()
    return [i for i, at in members if at is Level.AFTER and isinstance(i.definition, Reduced)]


def scatter_starts(group: Group, stored: set[fx.Node]) -> list[Nest]:
    """Kernels that initialize the results of the group's scatters."""
    scatters = [item for item in group.items if isinstance(item.definition, Scattered)]
    alone = [Group(item.shape, members={item.node: (item, Level.AFTER)}) for item in scatters]
    return [_Grid(each, stored, each.shape, 1).initialize(*each.items) for each in alone]


def _width(group: Group, shape: list[Size]) -> int:
    """How many adjacent elements a thread computes at a time."""
    if not shape:
        return 1
    smallest = min(dtype_of(node).itemsize for node in group.buffers())
    width = min(MAX_VECTOR_ELEMENTS, max(1, VECTOR_BYTES // smallest))
    while width > 1:
        threads = estimate(group.count, 4 * MIN_THREADS_TO_VECTORIZE) // width
        if quotient(shape[-1], width) is not None and threads >= MIN_THREADS_TO_VECTORIZE:
            return width
        width //= 2
    return 1


class _Grid(Checked, Builder):
    def __init__(
        self, group: Group, stored: set[fx.Node], shape: list[Size] | tuple[Size, ...], width: int
    ) -> None:
        self.width = width
        self.summed = _row_sums(group)
        super().__init__(group, stored, None, shape=shape)
        self.vector = [self.axes[-1]] if width > 1 else []
        outside = self.axes[: len(self.axes) - len(self.vector)]
        self.outer = [(axis,) for axis in outside[: self.split]]
        self.inner = [(axis,) for axis in outside[self.split :]]
        self.rows = product([axis.extent for (axis,) in self.outer])
        self.columns = product([axis.extent for (axis,) in self.inner])
        self.counters.update((axis, Counter(axis.name)) for axis in self.vector)
        self.team = self._team()
        rows = self.group.columns is not None
        self.set_columns = self.unfold(self.inner, Counter("c")) if rows else []

    def _split(self) -> int:
        if self.group.columns is not None:
            return self._axis_before(self.group.columns)
        if self.summed:
            return self._axis_before(product(shape_of(self.summed[0].node)))
        return len(self.axes)

    def _reduces_all(self) -> bool:
        return bool(self.summed) and self.is_total(self.summed[0])

    def _kept_rows(self) -> dict[fx.Node, Scratch]:
        """No row is kept: it is in registers or in the cache, and later phases recompute its
        values."""
        return {}

    def _team(self) -> int:
        """How many threads compute a row, or a chunk."""
        if self.group.columns is None:
            return TOTAL_TEAM_THREADS if self._reduces_all() else 1
        if isinstance(self.group.columns, int) and self.group.columns <= MAX_UNVECTORIZED_COLUMNS:
            return 1
        columns = estimate(self.columns) * self.width
        elements = LONG_ROW_ELEMENTS if columns > MAX_WARP_COLUMNS else SHORT_ROW_ELEMENTS
        most = WARP if columns <= MAX_WARP_COLUMNS else MAX_TEAM_THREADS
        if self.summed and columns > SUMMED_ROW_ELEMENTS * WARP:
            elements, most = SUMMED_ROW_ELEMENTS, MAX_TEAM_THREADS
        if estimate(self.rows, MIN_THREADS_TO_VECTORIZE) < MIN_ROWS_FOR_OCCUPANCY:
            elements, most = self.width, MAX_TEAM_THREADS
        team = 4
        while team < most and team * elements < columns:
            team *= 2
        return team

    # The four forms

    def main(self) -> Nest:
        """The kernel that iterates over the elements."""
        if self.group.columns is not None:
            return self._by_rows()
        if not self.summed:
            return self._by_elements()
        return self._totals() if self._reduces_all() else self._by_columns()

    def _by_elements(self) -> Nest:
        body = self._row_at(Counter("r"))
        return self._parallel("r", self.size(self.rows), body, Grid(self.rows))

    def _by_rows(self) -> Nest:
        if not self.summed:
            return self._by_elements()
        self.thread = Counter("t")
        before, after = self._chunk_sums()
        number = Name("r", torch.int64)
        body = (*before, self._interleaved(number, self._row_at(number)), *after)
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
        before, after = self._chunk_sums()
        number = Name("r", torch.int64)
        body = (*start, *before, self._interleaved(number, self._row_at(number)), *after)
        return self._parallel("g", Extent(CHUNKS) * columns, body, self._chunks())

    def _totals(self) -> Nest:
        self.thread = Counter("t")
        before, after = self._chunk_sums()
        first, last = share(self.size(self.rows))
        row = self._row_at(Counter("r"))
        body = (*before, Loop("r", first, last, row, Mapping.VECTOR), *after)
        return self._parallel("t", Extent(CHUNKS), body, self._chunks())

    def _row_at(self, number: Expression) -> tuple[Statement, ...]:
        """The statements for one row, given its number."""
        return (*self.unfold(self.outer, number), *self.row())

    def _chunks(self) -> Grid:
        """How rows are divided into chunks."""
        if self.group.columns is not None:
            return Grid(1, True, self.rows, self.team, MIN_CHUNK_ROWS)
        if self._reduces_all():
            return Grid(1, True, self.rows, self.team, MIN_CHUNK_ROWS * self.team)
        return Grid(self.columns, True, self.rows, self.columns, MIN_CHUNK_ROWS)

    def _parallel(
        self, counter: str, stop: Expression, body: tuple[Statement, ...], grid: Grid
    ) -> Nest:
        loop = Loop(counter, integer(0), stop, body, Mapping.PARALLEL)
        return self.nest("kernel", (loop,), team=self.team, grid=grid)

    def _interleaved(self, number: Name, row: tuple[Statement, ...]) -> Statement:
        """The loop over a chunk: every `chunks`-th row, so that adjacent rows are read together."""
        chunks = Extent(CHUNKS)
        left = self.size(self.rows) - self.thread + chunks - 1
        current = Assign(number.name, self.thread + Counter("q") * chunks)
        return Loop("q", integer(0), apply("floordiv", left, chunks), (current, *row))

    # Columns

    def over_columns(self, inside: list[Statement]) -> list[Statement]:
        inside = self._vectorized(inside)
        if not inside or self.group.columns is None:
            return inside
        body = (*self.set_columns, *inside)
        return [Loop("c", integer(0), self.size(self.columns), body, Mapping.VECTOR)]

    def _vectorized(self, inside: list[Statement]) -> list[Statement]:
        """The loop over adjacent elements, which is unrolled."""
        if not inside or not self.vector:
            return inside
        return [Loop(self.vector[0].name, integer(0), integer(self.width), tuple(inside))]

    # Reductions over rows, and scatters

    def _chunk_sums(self) -> tuple[list[Statement], list[Statement]]:
        """The statements of reductions over rows, before and after the rows of a chunk."""
        before: list[Statement] = []
        after: list[Statement] = []
        first: list[Statement] = []
        last: list[Statement] = []
        for item in self.summed:
            definition, scratch = item.definition, self.partial(item)
            assert isinstance(definition, Reduced)
            total = Name(self.total(item), scratch.dtype)
            if self.is_total(item):
                before.append(Accumulator(total.name, definition.start))
                after.append(Store(self.operand(scratch), self.thread, total))
            elif self._is_in_registers(item):
                first.append(Accumulator(total.name, definition.start, self._per()))
                last.append(Store(self.operand(scratch), self._partial_offset(item), total))
            else:
                before.append(cleared(self, scratch, self.thread, definition.start))
        return [*before, *self.over_columns(first)], [*self.over_columns(last), *after]

    def _per(self) -> tuple[tuple[str, int], ...]:
        """The loops over the columns of a thread, and their trip counts."""
        vector = [(axis.name, self.width) for axis in self.vector]
        if self.group.columns is None:
            return tuple(vector)
        assert isinstance(self.columns, int)
        return (("c", self.columns), *vector)

    def _is_in_registers(self, item: Item) -> bool:
        """Whether the partial results of a reduction over rows, a few a thread, fit into registers.

        Each thread has the same columns in every row.
        """
        if self.group.columns is None:
            return True
        if not isinstance(self.columns, int) or not same_number(
            product(shape_of(item.node)), self.group.columns
        ):
            return False
        copies = trips_per_thread(self.columns, self.team) * self.width
        return copies <= max_unrolled_copies(self.team)

    def _partial_offset(self, item: Item) -> Expression:
        """The offset of the current element in the workspace of partial results."""
        offset = linear(kept_index(item, self.index_of(item)), row_major(shape_of(item.node)))
        count = self.size(self.partial(item).count)
        return self.thread * count + self.position(offset)

    def partial_update(self, item: Item) -> Statement:
        definition, index = item.definition, self.index_of(item)
        assert not isinstance(definition, Mapped)
        if isinstance(definition, Scattered):
            return self.scattered(item, index)
        value = definition.element(index, self)
        if self.is_total(item) or self._is_in_registers(item):
            return Update(self.total(item), definition.operator, value)
        name = self.operand(self.partial(item))
        return Merge(name, self._partial_offset(item), definition.operator, value)

    def initialize(self, item: Item) -> Nest:
        """The kernel that initializes the result of a scatter."""
        definition = item.definition
        assert isinstance(definition, Scattered)
        count = product(shape_of(item.node))
        index = self._element_of(item, Counter("k"))
        body = (self.store(item.node, index, definition.start(index, self)),)
        self.team = 1
        return self._parallel("k", self.size(count), body, Grid(count))

    def combine(self, item: Item) -> Nest:
        """The kernel that combines the partial results of all chunks."""
        chunks = self._chunks()
        definition, scratch = item.definition, self.partial(item)
        assert isinstance(definition, Reduced)
        name, count = self.operand(scratch), product(shape_of(item.node))
        width = 4 if quotient(count, 4) is not None else 1
        groups = quotient(count, width)
        assert groups is not None
        first: list[Statement] = []
        adding: list[Statement] = []
        last: list[Statement] = []
        for lane in range(width):
            whole = Name(f"whole{lane}", scratch.dtype)
            k = Counter("k") * integer(width) + integer(lane) if width > 1 else Counter("k")
            part = Load(name, Counter("c") * self.size(count) + k, scratch.dtype)
            first.append(Accumulator(whole.name, definition.start))
            adding.append(Update(whole.name, definition.operator, part))
            last.append(self.finished(item, self._element_of(item, k), whole))
        sums = Loop("c", integer(0), Extent(CHUNKS), tuple(adding), Mapping.VECTOR)
        # No larger than the number of chunks, which full occupancy limits.
        most = FULL_OCCUPANCY_THREADS // max(1, estimate(chunks.threads))
        self.team = min(TOTAL_TEAM_THREADS, 1 << max(0, most.bit_length() - 1))
        grid = Grid(groups, False, chunks.rows, chunks.threads, chunks.min_rows)
        return self._parallel("k", self.size(groups), (*first, sums, *last), grid)

    def _element_of(self, item: Item, number: Expression) -> MultiIndex:
        """The index of an element of the result, given its number in row-major order."""
        axis = Axis("k", product(shape_of(item.node)))
        self.counters = {axis: number}
        return tuple(unravelled(of_axis(axis), shape_of(item.node)))
