"""Fusion groups: the items of one loop nest, and whether an item fits into one.

A group iterates over rows and columns.  A *full* item has a value for each element, a *row* item
one for each row: a reduction over columns, or a function of reductions.  Reductions over rows and
scatters are *after* the group: their results are complete only when it has finished.  An item may
read a member of its group if that has just been computed, for the same element or the same row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from torch import fx

from adjoint.lower.definitions import Multiplied, Scattered
from adjoint.lower.index import Index, linear, refined, row_major
from adjoint.lower.items import Item
from adjoint.lower.sizes import Size, estimate, is_one, product, quotient
from adjoint.lower.views import MultiIndex, shape_of
from adjoint.torch_private.symbols import same_number

# The most rows of results that a reduction over rows may have on a grid, in a group with reductions
# over columns: each of thousands of chunks of rows has partial results of its own, in memory.
MAX_SUMMED_ROWS = 4

# Tensors of full size that the epilogue of a product may read: it has few threads to hide latency.
MAX_EPILOGUE_READS = 6


class Level(Enum):
    FULL = "full"
    ROW = "row"
    AFTER = "after"


@dataclass(eq=False)
class Group:
    """Items of one loop nest."""

    shape: tuple[Size, ...]
    columns: Size | None = None
    """How many elements a row has; None while no item needs rows."""
    members: dict[fx.Node, tuple[Item, Level]] = field(default_factory=dict)
    row_sums: list[Size] = field(default_factory=list)
    """For each reduction over rows: the number of its results."""

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def items(self) -> list[Item]:
        return [item for item, _ in self.members.values()]

    @property
    def product(self) -> Item | None:
        """The matrix product whose epilogue the other items are."""
        return next((i for i in self.items if isinstance(i.definition, Multiplied)), None)

    def level(self, node: fx.Node) -> Level | None:
        found = self.members.get(node)
        return None if found is None else found[1]

    def buffers(self) -> set[fx.Node]:
        reads = {base for item in self.items for base, _ in item.reads}
        return reads | set(self.members)


class _Fit(NamedTuple):
    """A group after an item has joined it."""

    shape: tuple[Size, ...]
    columns: Size | None
    row_sums: list[Size]
    """Of the item."""
    level: Level
    """At which the item is computed."""


def enter(item: Item, group: Group, on_grid: bool) -> Level | None:
    """The level at which the group can compute the item; adapts the group's shape to it.

    `on_grid`: all reductions over rows in a group must have as many results, and only few.
    """
    for level in (Level.FULL, Level.ROW):
        fit = _fit(item, group, level)
        if fit is not None:
            if on_grid and not _suits_grid(fit, group):
                return None
            group.shape, group.columns = fit.shape, fit.columns
            group.row_sums += fit.row_sums
            return fit.level
    return None


def _suits_grid(fit: _Fit, group: Group) -> bool:
    """Whether all reductions over rows have as many results, in few rows if there are columns."""
    if any(not same_number(one, other) for one in fit.row_sums for other in group.row_sums):
        return False
    if fit.columns is None:
        return True
    rows = [quotient(each, fit.columns) for each in (*group.row_sums, *fit.row_sums)]
    return all(each is None or estimate(each) <= MAX_SUMMED_ROWS for each in rows)


def _fit(item: Item, group: Group, level: Level) -> _Fit | None:
    shape, columns = group.shape, group.columns
    is_first = not group.members
    if not _goes_with_product(item, group, level):
        return None
    if item.serial and not (is_first or all(m.serial for m in group.items)):
        return None
    if not item.serial and any(m.serial for m in group.items):
        return None
    if level is Level.FULL:
        if not same_number(item.count, group.count):
            return None
        finer = refined(shape, item.shape)
    else:
        if columns is None or is_first or (item.is_reduction and not _is_scatter(group, item)):
            return None
        rows = quotient(group.count, columns)
        if rows is None or not same_number(rows, item.count):
            return None
        if item.has_math and not any(group.level(base) is Level.ROW for base, _ in item.reads):
            return None
        finer = refined(shape, (*item.shape, columns))
    # The columns and the inner dimension of a product are not split.
    if finer is None or (group.product is not None and finer[-2:] != shape[-2:]):
        return None
    shape = finer
    for base, index in item.reads:
        found = group.members.get(base)
        if found is not None and not _is_available(item, level, index, *found, columns):
            return None
    if not item.is_reduction:
        return _Fit(shape, columns, [], level)
    return _with_reduction(item, group, shape, columns)


def _goes_with_product(item: Item, group: Group, level: Level) -> bool:
    """Whether products permit it: a product starts a group, and its readers join its epilogue."""
    if isinstance(item.definition, Multiplied):
        # A tile that gathers would wait for each index before it can load.
        return not group.members and not item.gathers
    if group.product is None:
        return True
    return (
        level is Level.ROW
        and any(base in group.members for base, _ in item.reads)
        and len(epilogue_reads(group) | epilogue_reads(item) - group.members.keys())
        <= MAX_EPILOGUE_READS
    )


def _is_scatter(group: Group, item: Item) -> bool:
    """Whether the item is a scatter in the epilogue of a product."""
    return group.product is not None and isinstance(item.definition, Scattered)


def epilogue_reads(of: Group | Item) -> set[fx.Node]:
    """Tensors of the result's size that the epilogue of a product reads."""
    items = [i for i in of.items if i is not of.product] if isinstance(of, Group) else [of]
    count = items[0].count if items else 0
    reads = {base for item in items for base, _ in item.reads}
    members = of.members.keys() if isinstance(of, Group) else set()
    return {b for b in reads - members if same_number(product(shape_of(b)), count)}


def _with_reduction(
    item: Item, group: Group, shape: tuple[Size, ...], columns: Size | None
) -> _Fit | None:
    if item.reduces_rows:
        length = item.columns
        if same_number(length, item.count):
            return _Fit(shape, columns, [1], Level.AFTER)
        if columns is not None and not same_number(columns, length):
            return None
        finer = _split_at(shape, length)
        if finer is None or not all(_keeps_columns(kept, length) for kept in group.row_sums):
            return None
        return _Fit(finer, length, [], Level.ROW)
    if isinstance(item.definition, Scattered):
        return _Fit(shape, columns, [], Level.AFTER)
    kept = quotient(item.count, item.columns)
    if kept is None or (columns is not None and not _keeps_columns(kept, columns)):
        return None
    finer = _split_at(shape, kept)
    return None if finer is None else _Fit(finer, columns, [kept], Level.AFTER)


def _keeps_columns(kept: Size, columns: Size) -> bool:
    """Whether a reduction over rows has a result for every column, or a single one."""
    return is_one(kept) or quotient(kept, columns) is not None


def _split_at(shape: tuple[Size, ...], columns: Size) -> tuple[Size, ...] | None:
    """`shape` with a boundary before the last `columns` elements."""
    rows = quotient(product(shape), columns)
    return None if rows is None else refined(shape, (rows, columns))


def _is_available(
    item: Item,
    level: Level,
    index: MultiIndex,
    other: Item,
    other_level: Level,
    columns: Size | None,
) -> bool:
    """Whether the element of `other` that `item` reads at `index` is the one just computed."""
    if other_level is Level.AFTER:
        return False
    position = other.position(index)
    current = linear([item.index[dim] for dim in item.order], row_major(item.shape))
    if other_level is level:
        return equal(position, current)
    if other_level is Level.FULL or columns is None:
        return False
    row = _row_number(item, columns)
    return row is not None and equal(position, row)


def _row_number(item: Item, columns: Size) -> Index | None:
    """The number of the row, for an item that iterates over all elements."""
    for first in range(len(item.order) + 1):
        if same_number(product(item.shape[first:]), columns):
            leading = [item.index[dim] for dim in item.order[:first]]
            return linear(leading, row_major(item.shape[:first]))
    return None


def equal(one: Index, other: Index) -> bool:
    """Whether two indices have equal terms, and so are equal for all values of axes."""
    left, right = dict(one.terms), dict(other.terms)
    return (
        left.keys() == right.keys()
        and all(same_number(left[atom], right[atom]) for atom in left)
        and same_number(one.constant, other.constant)
    )
