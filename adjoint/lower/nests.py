"""Loop nests for the CPU: the loops that compute one fusion group (`strided_rows` has another way).

parallel for t in range(chunks):        each thread has a contiguous range of rows
    for r in range(first, last):
        vector for j in range(columns): phase 0: items that read no reduction of the row
        ...                             row items
        vector for j in range(columns): phase 1: items that read those reductions
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from adjoint.loops.expressions import (
    Constant,
    Counter,
    Expression,
    Extent,
    Name,
    apply,
    integer,
)
from adjoint.loops.plan import Scratch
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Mapping,
    Statement,
    Store,
    Update,
)
from adjoint.lower.definitions import Mapped, Reduced, Scattered
from adjoint.lower.groups import Group, Level
from adjoint.lower.index import Axis
from adjoint.lower.items import Item
from adjoint.lower.operands import Nest, Operands
from adjoint.lower.partial_sums import (
    BLOCK_ROWS,
    PartialSums,
    cleared,
    combined,
    kept_index,
    share,
)
from adjoint.lower.sizes import Size, estimate, is_one, product, quotient
from adjoint.lower.views import MultiIndex, dtype_of, shape_of

Run: TypeAlias = tuple[Axis, ...]
"""Axes along which one loop goes."""

# Rows with at most this many columns: the loop over rows is vectorized, not that over columns.
MAX_UNVECTORIZED_COLUMNS = 8

# The fewest rows that are left where the loop around short columns becomes one over columns.
MIN_ROWS = 64

# Elements whose sum is added to a total as one number.  Where rows are vectorized, each lane has a
# sum of its own.
BLOCK_ELEMENTS = 16384

# Extents of a kernel in row tiles, after the number of chunks: the thread, and the range of rows.
TILE = ("t", "first", "last")


@dataclass(frozen=True, eq=False)
class TileNests:
    """The loops of a group in row tiles."""

    begin: Nest | None
    """Once for each thread."""
    rows: Nest
    """For each tile."""
    finale: Nest | None
    """After all rows."""


def tile_nests(group: Group, stored: set[fx.Node], rows: Size) -> TileNests:
    """The loops that compute rows `first` to `last`, of `rows` in all, of a group."""
    builder = Builder(group, stored, None, rows)
    parts = builder.build()
    runs = builder.merged()
    if runs != builder.runs:
        builder = Builder(group, stored, runs, rows)
        parts = builder.build()
    begin, body, finale = parts
    return TileNests(
        builder.nest("begin", tuple(begin), TILE) if begin else None,
        builder.nest("rows", tuple(body), TILE),
        builder.nest("finale", tuple(finale)) if finale else None,
    )


def partial_product(node: fx.Node) -> tuple[Scratch, Nest, Nest]:
    """A product that is summed over tiles: its workspace, a nest to clear it, and one to add up."""
    dtype = dtype_of(node)
    scratch = Scratch(f"part.{node.name}", dtype, product(shape_of(node)))
    operands = Operands(scratch.count)
    begin = cleared(operands, scratch, Extent("t"), Constant(0.0, dtype))
    finale = combined(
        operands, scratch, "add", lambda index, total: operands.store(node, index, total), node
    )
    return scratch, operands.nest("begin", (begin,), TILE), operands.nest("finale", tuple(finale))


class Builder(PartialSums):
    def build(self) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Statements before the rows of a thread, for its rows, and after all threads."""
        self.outer, self.inner = self._short_columns_joined(*self._loops())
        rows = product([axis.extent for run in self.outer for axis in run])
        set_row = self.unfold(self.outer, Counter("r"))
        for run in self.inner:
            self.counters[run[-1]] = Counter(run[-1].name)
        begin, before, after, finale = self.sums()
        body = (*set_row, *self.row())
        first, last = self._range(rows)
        mapping = Mapping.VECTOR if self._vectorizes_rows() else Mapping.SERIAL
        block = self._block(rows)
        if not after or block is None:
            return begin, [*before, Loop("r", first, last, body, mapping), *after], finale
        names = [Name(name, torch.int64) for name in ("first", "last", "begin")]
        end = apply("minimum", names[2] + block, names[1])
        one_block = (
            Assign("begin", names[0] + Counter("b") * block),
            *before,
            Loop("r", names[2], end, body, mapping),
            *after,
        )
        count = apply("floordiv", names[1] - names[0] + block - 1, block)
        limits = (Assign("first", first), Assign("last", last))
        return begin, [*limits, Loop("b", integer(0), count, one_block)], finale

    def _short_columns_joined(
        self, outer: list[Run], inner: list[Run]
    ) -> tuple[list[Run], list[Run]]:
        """The loop around short columns is one over columns, too, and is vectorized.

        A loop over all rows would divide its counter for each element, and hide from LLVM which
        elements are adjacent.  Not where it would leave too few rows for the threads.
        """
        if not self._are_short(inner) or len(outer) < 2 or self.tiled is not None:
            return outer, inner
        if not all(isinstance(item.definition, Mapped) for item in self.group.items):
            return outer, inner
        remaining = product([axis.extent for run in outer[:-1] for axis in run])
        if self._are_short(outer[-1:]) or estimate(remaining) < MIN_ROWS:
            return outer, inner
        return outer[:-1], [outer[-1], *inner]

    def _are_short(self, runs: Sequence[Run]) -> bool:
        """Whether loops have so few iterations together that they are not worth vectorizing."""
        count = product([axis.extent for run in runs for axis in run])
        return isinstance(count, int) and count <= MAX_UNVECTORIZED_COLUMNS

    def _block(self, rows: Size) -> Expression | None:
        """How many rows make a block of a sum; None: all rows are one block."""
        if self.tiled is not None:
            return None
        sums = [item for item in self.group.items if self.is_blocked(item)]
        length = BLOCK_ROWS if sums and not self._vectorizes_rows() else BLOCK_ELEMENTS
        elements = product([length, *(shape_of(sums[0].node) if sums else ())])
        columns = self._columns_of_a_row()
        if isinstance(elements, int) and isinstance(columns, int):
            most = max(1, elements // max(1, columns))
            return None if isinstance(rows, int) and rows <= most else integer(most)
        # There may be no columns at run time.
        divisor = apply("maximum", self.size(columns), integer(1))
        return apply("maximum", apply("floordiv", self.size(elements), divisor), integer(1))

    def _columns_of_a_row(self) -> Size:
        return product([axis.extent for run in self.inner for axis in run])

    def _range(self, rows: Size) -> tuple[Expression, Expression]:
        """The range of rows: a thread's share, or the tile that the caller passes."""
        if self.tiled is None:
            return share(self.size(rows))
        times = quotient(rows, self.tiled)
        assert times is not None, (rows, self.tiled)
        return Extent("first") * self.size(times), Extent("last") * self.size(times)

    def _vectorizes_rows(self) -> bool:
        if any(item.serial for item in self.group.items):
            return False
        return self._are_short(self.inner)

    def unfold(self, runs: Sequence[tuple[Axis, ...]], number: Expression) -> list[Statement]:
        """Assign the counter of each run, given the number of the iteration through all of them."""
        if len(runs) == 1:
            self.counters[runs[0][-1]] = number
            return []
        statements: list[Statement] = []
        sizes = [product([axis.extent for axis in run]) for run in runs]
        for place, run in enumerate(runs):
            rest = product(sizes[place + 1 :])
            value = number if is_one(rest) else apply("floordiv", number, self.size(rest))
            if place:
                value = apply("mod", value, self.size(sizes[place]))
            name = run[-1].name
            statements.append(Assign(name, value))
            self.counters[run[-1]] = Name(name, torch.int64)
        return statements

    def row(self) -> list[Statement]:
        """The statements of one row, phase after phase."""
        statements: list[Statement] = []
        for phase in range(1 + max(self.phases.values())):
            self.phase, self.computed = phase, {}
            members = [m for m in self.group.members.values() if self.phases[m[0].node] == phase]
            for item, level in members:
                if level is Level.ROW and isinstance(item.definition, Mapped):
                    statements += self.row_item(item)
            before, inside, after = self._columns(members)
            statements += before
            statements += self.over_columns(inside)
            statements += after
        return statements

    def row_item(self, item: Item) -> list[Statement]:
        index = self.index_of(item, rows=True)
        return self.row_value(item, index, item.definition.element(index, self))

    def row_value(self, item: Item, index: MultiIndex, value: Expression) -> list[Statement]:
        """Name the value of an item in a row, and store it at `index` if others need it."""
        name = Name(f"row{len(self.available)}", value.dtype)
        self.available[item.node] = name
        statements: list[Statement] = [Assign(name.name, value)]
        if item.node in self.stored:
            statements.append(self.store(item.node, index, name))
        return statements

    def _columns(
        self, members: Sequence[tuple[Item, Level]]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """The statements of a phase before, in, and after its loop over columns."""
        before: list[Statement] = []
        inside: list[Statement] = []
        after: list[Statement] = []
        for item, level in members:
            node, definition = item.node, item.definition
            match definition:
                case Mapped() if level is Level.FULL:
                    if node in self.stored:
                        value = self.member(item, level)
                        inside.append(self.store(node, self.index_of(item), value))
                    elif node in self.kept_rows:
                        value = self.member(item, level)
                        name, offset = self.kept_element(node)
                        inside.append(Store(name, offset, value))
                case Reduced() if level is Level.ROW:
                    total = Name(f"sum{len(self.available)}", definition.start.dtype)
                    before.append(Accumulator(total.name, definition.start))
                    value = definition.element(self.index_of(item), self)
                    inside.append(Update(total.name, definition.operator, value))
                    # Assigned right after the loop: later phases read the name.
                    self.available[node] = Name(f"{total.name}.done", dtype_of(node))
                    finished = definition.finish(total, self)
                    after.append(Assign(f"{total.name}.done", finished))
                    if node in self.stored:
                        index = kept_index(item, self.index_of(item))
                        after.append(self.store(node, index, self.available[node]))
                case Reduced() | Scattered():
                    inside.append(self.partial_update(item))
                case Mapped():
                    pass
        return before, inside, after

    def over_columns(self, inside: list[Statement]) -> list[Statement]:
        """The loops over columns around statements."""
        if not inside or not self.inner:
            return inside
        body = tuple(inside)
        is_free = not any(item.serial for item in self.group.items)
        for place in reversed(range(len(self.inner))):
            run = self.inner[place]
            extent = self.size(product([axis.extent for axis in run]))
            is_vector = is_free and not self._are_short(self.inner[place:])
            mapping = Mapping.VECTOR if is_vector else Mapping.SERIAL
            is_free = is_free and not is_vector
            body = (Loop(run[-1].name, integer(0), extent, body, mapping),)
        return list(body)
