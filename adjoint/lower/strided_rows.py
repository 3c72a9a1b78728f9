"""Reductions over an axis that is not contiguous in memory, while one of the rows is.

`softmax(x, 1)` of images reduces over channels, whose stride is the size of an image; neighbouring
pixels are neighbours in memory.  A loop over the columns of one row would load each element from
another cache line.  Instead a block of rows is reduced at once, with an accumulator for each row in
a workspace, and the loop over rows is vectorized:

for o in the rows of all but the last axis:
    for each block of the last axis:
        vector for j: w[j] = start
        for i in range(columns):
            vector for j: w[j] += x[...]
        vector for j: row items, stores
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.loops.expressions import Counter, Expression, Extent, Load, Name, apply, integer
from adjoint.loops.plan import Scratch
from adjoint.loops.statements import Assign, Loop, Mapping, Merge, Statement, Store
from adjoint.lower.definitions import Mapped, Reduced, Scattered
from adjoint.lower.groups import Group, Level
from adjoint.lower.index import Axis, Index
from adjoint.lower.items import Item
from adjoint.lower.nests import Builder
from adjoint.lower.operands import CHUNKS, Nest
from adjoint.lower.partial_sums import BLOCK_ROWS, kept_index
from adjoint.lower.sizes import is_one, product

# Rows that are reduced at once: their accumulators stay in the L1 cache.
ROWS_AT_ONCE = 1024

# Fewer contiguous rows are not worth a vectorized loop.
MIN_CONTIGUOUS_ROWS = 32


def nest_of(group: Group, stored: set[fx.Node], name: str = "kernel") -> Nest:
    """The loops that compute `group`; `stored` are those of its values that others need."""
    builder = Builder(group, stored, None)
    parts = builder.build()
    runs = builder.merged()
    kind = StridedBuilder if reduces_strided_columns(builder) else Builder
    if kind is not Builder or runs != builder.runs:
        builder = kind(group, stored, runs)
        parts = builder.build()
    begin, rows, finale = parts
    parallel = Loop("t", integer(0), Extent(CHUNKS), (*begin, *rows), Mapping.PARALLEL)
    return builder.nest(name, (parallel, *finale))


def reduces_strided_columns(dry: Builder) -> bool:
    """Whether the group of a builder, which has been run once, is computed by blocks of rows."""
    group, columns = dry.group, dry.group.columns
    # One number is added to each accumulator for each column: more are summed in blocks.
    if not isinstance(columns, int) or columns > BLOCK_ROWS or dry.tiled is not None:
        return False
    if dry.kept_rows or not all(_is_supported(dry, *member) for member in group.members.values()):
        return False
    row = next((axis for axis in reversed(dry.axes[: dry.split]) if not is_one(axis.extent)), None)
    if row is None or not isinstance(row.extent, int) or row.extent < MIN_CONTIGUOUS_ROWS:
        return False
    inner = dry.axes[dry.split :]
    over_columns = [i for i in dry.accesses if any(i.coefficient(axis) != 0 for axis in inner)]
    if not over_columns or not all(_is_along(index, row) for index in dry.accesses):
        return False
    return all(i.coefficient(row) == 1 and i.coefficient(inner[-1]) != 1 for i in over_columns)


def _is_supported(dry: Builder, item: Item, level: Level) -> bool:
    match item.definition:
        case Mapped():
            # A value of a later phase, for each element, would be another pass over the columns.
            later = dry.phases[item.node] > 0
            return later if level is Level.ROW else level is Level.FULL and not later
        case Reduced():
            return level is Level.ROW and dry.phases[item.node] == 0 and not item.serial
        case Scattered():
            return False


def _is_along(index: Index, row: Axis) -> bool:
    """Whether neighbours along the axis are neighbours in memory, or the same element."""
    atoms = [atom for atom, _ in index.terms if not isinstance(atom, Axis)]
    return not atoms and index.coefficient(row) in (0, 1)


class StridedBuilder(Builder):
    def build(self) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Statements for the rows of a thread."""
        self.outer, self.inner = self._loops()
        *others, last_run = self.outer
        extent = self.size(product([axis.extent for axis in last_run]))
        rows = product([axis.extent for run in self.outer for axis in run])
        start, stop = self._range(rows)
        first, last, low, high, begin = (
            Name(name, torch.int64) for name in ("first", "last", "low", "high", "begin")
        )
        outer = Counter("o")
        set_row = self.unfold(others, outer) if others else []
        self.counters[last_run[-1]] = begin + Counter("j")
        for run in self.inner:
            self.counters[run[-1]] = Counter(run[-1].name)
        self.count = apply("minimum", high - begin, integer(ROWS_AT_ONCE))
        block = (Assign("begin", low + Counter("b") * integer(ROWS_AT_ONCE)), *self.row())
        blocks = apply("floordiv", high - low + (ROWS_AT_ONCE - 1), integer(ROWS_AT_ONCE))
        body = (
            *set_row,
            Assign("low", apply("maximum", first - outer * extent, integer(0))),
            Assign("high", apply("minimum", last - outer * extent, extent)),
            Loop("b", integer(0), blocks, block),
        )
        until = apply("floordiv", last + extent - 1, extent)
        loop = Loop("o", apply("floordiv", first, extent), until, body)
        return [], [Assign("first", start), Assign("last", stop), loop], []

    def row(self) -> list[Statement]:
        """The statements of one block of rows."""
        members = list(self.group.members.values())
        starts: list[Statement] = []
        inside: list[Statement] = []
        after: list[Statement] = []
        self.phase, self.computed = 0, {}
        for item, level in members:
            definition = item.definition
            if isinstance(definition, Reduced):
                scratch = Scratch(f"rows.{item.node.name}", definition.start.dtype, ROWS_AT_ONCE)
                name, place = (
                    self.operand(scratch),
                    self.thread * integer(ROWS_AT_ONCE) + Counter("j"),
                )
                starts.append(Store(name, place, definition.start))
                value = definition.element(self.index_of(item), self)
                inside.append(Merge(name, place, definition.operator, value))
                after += self._finished(item, Load(name, place, scratch.dtype))
            elif level is Level.FULL and item.node in self.stored:
                value = self.member(item, level)
                inside.append(self.store(item.node, self.index_of(item), value))
            elif level is Level.ROW:
                after += self.row_item(item)
        return [self._over_rows(starts), *self.over_columns(inside), self._over_rows(after)]

    def _finished(self, item: Item, total: Expression) -> list[Statement]:
        assert isinstance(item.definition, Reduced)
        value = item.definition.finish(total, self)
        return self.row_value(item, kept_index(item, self.index_of(item)), value)

    def _over_rows(self, body: list[Statement]) -> Statement:
        return Loop("j", integer(0), self.count, tuple(body), Mapping.VECTOR)

    def over_columns(self, inside: list[Statement]) -> list[Statement]:
        """The loops over columns around the loop over rows."""
        body: tuple[Statement, ...] = (self._over_rows(inside),)
        for run in reversed(self.inner):
            extent = self.size(product([axis.extent for axis in run]))
            body = (Loop(run[-1].name, integer(0), extent, body),)
        return list(body)
