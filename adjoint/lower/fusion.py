"""Fusion: which items are computed in one nest of loops.

A group iterates over rows and columns.  A *full* item has a value for each element, a *row* item
for each row: a sum over columns, or what is computed from such sums.  What is summed over rows, or
scattered, is known only after the group.  An item joins the group of what it reads if it reads
elements that are at hand: at the same place in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch import fx

from adjoint.lower.definitions import Mapped, Scattered
from adjoint.lower.index import Index, linear, refined, row_major
from adjoint.lower.items import NOTHING, Item
from adjoint.lower.sizes import Size, is_one, product, quotient, same

# More would not fit into registers and caches, and compiles slowly.
MOST_ITEMS = 32
MOST_BUFFERS = 40


class Level(Enum):
    FULL = "full"
    ROW = "row"
    AFTER = "after"


@dataclass(eq=False)
class Group:
    """Items of one nest."""

    shape: tuple[Size, ...]
    columns: Size | None = None
    """How many elements make a row, once some item has to know."""
    members: dict[fx.Node, tuple[Item, Level]] = field(default_factory=dict)
    kept: list[Size] = field(default_factory=list)
    """For each sum over rows: how many values it keeps apart."""
    inlined: Mapping[fx.Node, Mapped] = field(default_factory=dict)
    """What items read that is no item, but is computed where it is read."""

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def items(self) -> list[Item]:
        return [item for item, _ in self.members.values()]

    def level(self, node: fx.Node) -> Level | None:
        found = self.members.get(node)
        return None if found is None else found[1]

    def buffers(self) -> set[fx.Node]:
        reads = {base for item in self.items for base, _ in item.reads}
        return reads | set(self.members)


def fuse(
    items: Iterable[Item],
    needs: dict[fx.Node, set[fx.Node]],
    alike: bool = False,
    inlined: Mapping[fx.Node, Mapped] = NOTHING,
) -> list[Group]:
    """Groups that can run one after another, between the calls of other ops.

    `needs`: for each node, what must be there before it.  `alike`: sums over rows in one group
    keep as many values apart.
    """
    return _Fusion(needs, alike, inlined).run(items)


class _Fusion:
    def __init__(
        self,
        needs: dict[fx.Node, set[fx.Node]],
        alike: bool,
        inlined: Mapping[fx.Node, Mapped],
    ) -> None:
        self.needs = needs
        self.alike = alike
        self.inlined = inlined
        self.groups: list[Group] = []
        self.group_of: dict[fx.Node, Group] = {}

    def run(self, items: Iterable[Item]) -> list[Group]:
        for item in items:
            group = self.place(item)
            self.group_of[item.node] = group
        return self.groups

    def place(self, item: Item) -> Group:
        for group in self.candidates(item):
            if self.joins(item, group):
                return group
        group = Group(item.shape, inlined=self.inlined)
        level = _enter(item, group)
        assert level is not None
        group.members[item.node] = (item, level)
        self.groups.append(group)
        return group

    def candidates(self, item: Item) -> list[Group]:
        """Groups that compute what the item reads, the latest first; then those that read it."""
        bases = {base for base, _ in item.reads}
        makers = [g for g in reversed(self.groups) if any(base in g.members for base in bases)]
        sharers = [
            group
            for group in reversed(self.groups[-12:])
            if group not in makers
            and any(base in bases for each in group.items for base, _ in each.reads)
        ]
        return [*makers, *sharers]

    def joins(self, item: Item, group: Group) -> bool:
        if len(group.members) >= MOST_ITEMS or len(group.buffers()) >= MOST_BUFFERS:
            return False
        if item.checked & group.members.keys() or self.comes_after(item, group):
            return False
        level = _enter(item, group, self.alike)
        if level is None:
            return False
        group.members[item.node] = (item, level)
        return True

    def comes_after(self, item: Item, group: Group) -> bool:
        """Something outside the group, which the item needs, needs the group."""
        seen: set[int] = set()
        work = [need for need in self.needs[item.node] if need not in group.members]
        while work:
            node = work.pop()
            if node in group.members:
                return True
            maker = self.group_of.get(node)
            if maker is None:
                if id(node) not in seen:
                    seen.add(id(node))
                    work += self.needs.get(node, ())
            elif id(maker) not in seen:
                seen.add(id(maker))
                work += [n for member in maker.members for n in self.needs[member]]
        return False


def _enter(item: Item, group: Group, alike: bool = False) -> Level | None:
    """The level at which the item can be computed in the group; makes the group ready for it."""
    for level in (Level.FULL, Level.ROW):
        fitted = _fitted(item, group, level)
        if fitted is not None:
            shape, columns, kept, result = fitted
            if alike and any(not same(one, other) for one in kept for other in group.kept):
                return None
            group.shape, group.columns = shape, columns
            group.kept += kept
            return result
    return None


def _fitted(
    item: Item, group: Group, level: Level
) -> tuple[tuple[Size, ...], Size | None, list[Size], Level] | None:
    shape, columns = group.shape, group.columns
    alone = not group.members
    if item.serial and not (alone or all(m.serial for m in group.items)):
        return None
    if not item.serial and any(m.serial for m in group.items):
        return None
    if level is Level.FULL:
        if not same(item.count, group.count):
            return None
        finer = refined(shape, item.shape)
    else:
        if columns is None or item.is_reduction or alone:
            return None
        rows = quotient(group.count, columns)
        if rows is None or not same(rows, item.count):
            return None
        if item.has_math and not any(group.level(base) is Level.ROW for base, _ in item.reads):
            return None
        finer = _finer_rows(shape, columns, item.shape)
    if finer is None:
        return None
    shape = finer
    for base, index in item.reads:
        found = group.members.get(base)
        if found is None:
            continue
        if not _at_hand(item, level, index, *found, columns):
            return None
    if not item.is_reduction:
        return shape, columns, [], level
    return _with_reduction(item, group, shape, columns)


def _with_reduction(
    item: Item, group: Group, shape: tuple[Size, ...], columns: Size | None
) -> tuple[tuple[Size, ...], Size | None, list[Size], Level] | None:
    if item.reduces_rows:
        wanted = item.columns
        everything = same(wanted, item.count)
        if not everything:
            if columns is not None and not same(columns, wanted):
                return None
            finer = _split_at(shape, wanted)
            if finer is None or not all(_keeps_columns(kept, wanted) for kept in group.kept):
                return None
            return finer, wanted, [], Level.ROW
        return shape, columns, [1], Level.AFTER
    if isinstance(item.definition, Scattered):
        return shape, columns, [], Level.AFTER
    kept = quotient(item.count, item.columns)
    if kept is None or (columns is not None and not _keeps_columns(kept, columns)):
        return None
    finer = _split_at(shape, kept)
    return None if finer is None else (finer, columns, [kept], Level.AFTER)


def _keeps_columns(kept: Size, columns: Size) -> bool:
    """A sum over rows either keeps every column apart, or none."""
    return is_one(kept) or quotient(kept, columns) is not None


def _split_at(shape: tuple[Size, ...], columns: Size) -> tuple[Size, ...] | None:
    """`shape` with a boundary before the last `columns` elements."""
    count = product(shape)
    rows = quotient(count, columns)
    return None if rows is None else refined(shape, (rows, columns))


def _finer_rows(
    shape: tuple[Size, ...], columns: Size, rows: Sequence[Size]
) -> tuple[Size, ...] | None:
    return refined(shape, (*rows, columns))


def _at_hand(
    item: Item, level: Level, index: tuple[Index, ...], other: Item, at: Level, columns: Size | None
) -> bool:
    """The element of `other` that `item` reads is the one just computed."""
    if at is Level.AFTER:
        return False
    place = other.position(index)
    here = linear([item.index[dim] for dim in item.order], row_major(item.shape))
    if at is level:
        return equal(place, here)
    if at is Level.FULL or columns is None:
        return False
    return any(equal(place, row) for row in _rows(item, columns))


def _rows(item: Item, columns: Size) -> list[Index]:
    """The number of the row, for an item that runs over all elements."""
    for first in range(len(item.order) + 1):
        if same(product(item.shape[first:]), columns):
            leading = [item.index[dim] for dim in item.order[:first]]
            return [linear(leading, row_major(item.shape[:first]))]
    return []


def equal(one: Index, other: Index) -> bool:
    """Equal for all values of axes, as far as terms show."""
    left, right = dict(one.terms), dict(other.terms)
    return (
        left.keys() == right.keys()
        and all(same(left[atom], right[atom]) for atom in left)
        and same(one.constant, other.constant)
    )
