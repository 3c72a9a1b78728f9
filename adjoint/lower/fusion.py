"""Fusion: which items are computed in one nest of loops.

A group iterates over rows and columns.  A *full* item has a value for each element, a *row* item
for each row: a sum over columns, or what is computed from such sums.  What is summed over rows, or
scattered, is known only after the group.  An item joins the group of what it reads if it reads
elements that are at hand: at the same place in the same order.

What is mapped from tensors in memory could be computed anywhere: it waits for its first reader, and
joins the group that the reader is in.  Where a few elements are read that are not at hand, they are
computed on the spot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from torch import fx

from adjoint.lower.definitions import Definition, Mapped, Multiplied, Scattered
from adjoint.lower.index import Index, linear, refined, row_major
from adjoint.lower.inlining import is_small
from adjoint.lower.items import Item, reading_through
from adjoint.lower.reachability import Reachability
from adjoint.lower.sizes import Size, estimate, is_one, product, quotient, same
from adjoint.lower.views import shape_of

# More would not fit into registers and caches, and compiles slowly.
MOST_ITEMS = 32
MOST_BUFFERS = 40

# With so many elements, memory is worth more than a launch.
MUCH = 1 << 20

# A product has few threads to wait for memory: no more is read beside it.
MOST_BESIDE = 6

# What is computed on the spot reads no more than this, and is made of no more items.
MOST_READS = 2
MOST_ON_THE_SPOT = 8


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

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def items(self) -> list[Item]:
        return [item for item, _ in self.members.values()]

    @property
    def product(self) -> Item | None:
        """The matrix product around which the group is."""
        return next((i for i in self.items if isinstance(i.definition, Multiplied)), None)

    def level(self, node: fx.Node) -> Level | None:
        found = self.members.get(node)
        return None if found is None else found[1]

    def buffers(self) -> set[fx.Node]:
        reads = {base for item in self.items for base, _ in item.reads}
        return reads | set(self.members)


def fuse(
    items: Iterable[Item],
    needs: dict[fx.Node, set[fx.Node]],
    stored: Set[fx.Node],
    alike: bool = False,
) -> list[Group]:
    """Groups that can run one after another, between the calls of other ops.

    `needs`: for each node, what must be there before it.  `stored`: items that others than items
    need.  `alike`: sums over rows in one group keep as many values apart.  An item that is computed
    wherever it is read is in no group.
    """
    return _Fusion(needs, stored, alike).run(items)


class _Fusion:
    def __init__(
        self, needs: dict[fx.Node, set[fx.Node]], stored: Set[fx.Node], alike: bool
    ) -> None:
        self.needs = dict(needs)
        self.stored = stored
        self.alike = alike
        self.groups: list[Group] = []
        self.began: dict[Group, int] = {}
        """Which group it was, from the first."""
        self.group_of: dict[fx.Node, Group] = {}
        self.waiting: dict[fx.Node, Item] = {}
        self.reached = Reachability()
        """Of groups, and of nodes that are in none."""

    def run(self, items: Iterable[Item]) -> list[Group]:
        for item in items:
            if self.may_wait(item):
                self.waiting[item.node] = item
            else:
                self.place(item)
        return self.groups

    def may_wait(self, item: Item) -> bool:
        return (
            isinstance(item.definition, Mapped)
            and item.node not in self.stored
            and not any(base in self.group_of for base, _ in item.reads)
        )

    def awaited(self, item: Item) -> list[Item]:
        """What waits for the item, in order."""
        found: set[fx.Node] = set()
        work = [item]
        while work:
            for base, _ in work.pop().reads:
                if base in self.waiting and base not in found:
                    found.add(base)
                    work.append(self.waiting[base])
        return [each for node, each in self.waiting.items() if node in found]

    def place(self, item: Item) -> None:
        """The item and all that waits for it."""
        for each in self.awaited(item):
            # What cannot be in one group with the item, and is too long to be computed on the spot.
            if each.node in self.waiting and not (
                same(each.count, item.count) or _is_short(each.definition, each)
            ):
                self.place(self.waiting.pop(each.node))
        together = [*self.awaited(item), item]
        if self.join_merged(together):
            return
        for group in [*self.candidates(together), Group(item.shape)]:
            if self.join_together(together, group):
                return
        for each in together:
            self.waiting.pop(each.node, None)
            if not any(self.join_together([each], group) for group in self.candidates([each])):
                alone = self.join_together([each], Group(each.shape))
                assert alone

    def join_together(self, items: Sequence[Item], group: Group) -> bool:
        """The last, and those before it of which it is made; if not all of them can, none does."""
        before = group.shape, group.columns, dict(group.members), list(group.kept)
        joined: list[fx.Node] = []
        on_the_spot: dict[fx.Node, Definition] = {}
        for item in items:
            made = reading_through(item, on_the_spot)
            if made is not None and self.joins(made, group):
                joined.append(item.node)
            elif made is not None and item is not items[-1] and _is_short(made.definition, made):
                on_the_spot[item.node] = made.definition
            else:
                group.shape, group.columns, group.members, group.kept = before
                return False
        for node in joined:
            self.waiting.pop(node, None)
            self.group_of[node] = group
            self.needs[node] = _needs(group.members[node][0])
            self.reached.add(group, self.all_needed(self.needs[node]))
            if node in self.reached:
                self.reached.add(node, self.reached.row(group))
        if group not in self.began:
            self.began[group] = len(self.began)
            self.groups.append(group)
        return True

    def join_merged(self, items: Sequence[Item]) -> bool:
        """Where items read what several groups compute, these may be one group."""
        makers = self.makers(items)
        if len(makers) < 2:
            return False
        whole, parts = makers[0], makers[:1]
        read = {base for item in items for base, _ in item.reads}
        for other in makers[1:]:
            shared = (whole.buffers() | read) & other.buffers()
            merged = self.merged(other, whole) if self.is_worth_it(shared, whole.count) else None
            if merged is not None:
                whole = merged
                parts.append(other)
        if len(parts) == 1 or not self.join_together(items, whole):
            return False
        self.groups = [group for group in self.groups if group not in parts]
        for node in whole.members:
            self.group_of[node] = whole
        for part in parts:
            self.reached.add(whole, self.reached.row(part))
        for part in parts:
            self.reached.add(part, self.reached.row(whole))
        return True

    def is_worth_it(self, shared: Iterable[fx.Node], count: Size) -> bool:
        """Whether groups of so many elements are better one, for what they share.

        All that they read and make has to be in memory at the same time then.
        """
        if not self.alike or estimate(count) < MUCH:
            return True
        return not all(is_small(base, count) for base in shared)

    def merged(self, one: Group, other: Group) -> Group | None:
        """A group that computes what both do, if there is one."""
        if not same(one.count, other.count) or len(one.members) + len(other.members) > MOST_ITEMS:
            return None
        needed = {each: {n for item in each.items for n in _needs(item)} for each in (one, other)}
        if self.lead_to(needed[one], other, one) or self.lead_to(needed[other], one, other):
            return None
        parts = (other, one) if needed[one] & other.members.keys() else (one, other)
        whole = Group(parts[0].shape)
        for item in (item for part in parts for item in part.items):
            level = None if item.checked & whole.members.keys() else _enter(item, whole, self.alike)
            if level is None or len(whole.buffers()) >= MOST_BUFFERS:
                return None
            whole.members[item.node] = (item, level)
        return whole

    def makers(self, items: Sequence[Item]) -> list[Group]:
        """Groups that compute what items read, the latest first."""
        bases = {base for item in items for base, _ in item.reads}
        found = {self.group_of[base] for base in bases if base in self.group_of}
        return sorted(found, key=self.began.__getitem__, reverse=True)

    def candidates(self, items: Sequence[Item]) -> list[Group]:
        """Groups that compute what items read, the latest first; then those that read it."""
        bases = {base for item in items for base, _ in item.reads}
        makers = self.makers(items)
        sharers = [
            group
            for group in reversed(self.groups[-12:])
            if group not in makers
            and (shared := bases & {base for each in group.items for base, _ in each.reads})
            and self.is_worth_it(shared, group.count)
        ]
        return [*makers, *sharers]

    def joins(self, item: Item, group: Group) -> bool:
        if len(group.members) >= MOST_ITEMS or len(group.buffers()) >= MOST_BUFFERS:
            return False
        for made in (item, _for_rows(item, group)):
            if made is None or made.checked & group.members.keys() or self.comes_after(made, group):
                continue
            level = _enter(made, group, self.alike)
            if level is not None:
                group.members[item.node] = (made, level)
                return True
        return False

    def comes_after(self, item: Item, group: Group) -> bool:
        """Something outside the group, which the item needs, needs the group."""
        return self.lead_to(_needs(item), group)

    def lead_to(self, needs: Set[fx.Node], group: Group, own: Group | None = None) -> bool:
        """Something outside the group, and not of one's own, needs the group."""
        inside = group.members.keys() | (own.members.keys() if own else set())
        outside = [need for need in needs if need not in inside]
        target = 0
        for member in group.members:
            target |= self.reached.bit(self.unit(member))
        return bool(target & self.all_needed(outside))

    def unit(self, node: fx.Node) -> Group | fx.Node:
        return self.group_of.get(node, node)

    def all_needed(self, nodes: Iterable[fx.Node]) -> int:
        """`nodes`, and all that they need, as a set of `reached`."""
        needed = 0
        for node in nodes:
            if self.unit(node) not in self.reached:
                self.reach(node)
            needed |= self.reached.row(self.unit(node))
        return needed

    def reach(self, node: fx.Node) -> None:
        """Find out what a node that is in no group needs."""
        work = [node]
        while work:
            needs = self.needs.get(work[-1], set())
            unknown = [need for need in needs if self.unit(need) not in self.reached]
            if unknown:
                work += unknown
            else:
                self.reached.add(work.pop(), self.all_needed(needs))


def _needs(item: Item) -> set[fx.Node]:
    return {base for base, _ in item.reads} | item.checked


def _is_short(definition: Definition, item: Item) -> bool:
    """An element costs little more to compute than to read."""
    return (
        isinstance(definition, Mapped)
        and not definition.bounds
        and not item.has_math
        and len(item.reads) <= MOST_READS
    )


def _for_rows(item: Item, group: Group) -> Item | None:
    """An item of rows which computes the elements that it reads of them on the spot."""
    if group.columns is None or item.is_reduction:
        return None
    rows = quotient(group.count, group.columns)
    if rows is None or not same(rows, item.count):
        return None
    on_the_spot: dict[fx.Node, Definition] = {}
    made: Item | None = item
    while made is not None and len(on_the_spot) <= MOST_ON_THE_SPOT:
        full = [base for base, _ in made.reads if group.level(base) is Level.FULL]
        if not full:
            return made if on_the_spot else None
        on_the_spot |= {base: group.members[base][0].definition for base in full}
        made = reading_through(item, on_the_spot)
    return None


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
    if not _goes_with_products(item, group, level):
        return None
    if item.serial and not (alone or all(m.serial for m in group.items)):
        return None
    if not item.serial and any(m.serial for m in group.items):
        return None
    if level is Level.FULL:
        if not same(item.count, group.count):
            return None
        finer = refined(shape, item.shape)
    else:
        if columns is None or alone or (item.is_reduction and not _is_scattered_by(group, item)):
            return None
        rows = quotient(group.count, columns)
        if rows is None or not same(rows, item.count):
            return None
        if item.has_math and not any(group.level(base) is Level.ROW for base, _ in item.reads):
            return None
        finer = _finer_rows(shape, columns, item.shape)
    # The columns of a product, and what it sums over, are not taken apart.
    if finer is None or (group.product is not None and finer[-2:] != shape[-2:]):
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


def _goes_with_products(item: Item, group: Group, level: Level) -> bool:
    """A product begins a group; what is made of its elements joins it."""
    if isinstance(item.definition, Multiplied):
        # Tiles would wait for every place that they read.
        return not group.members and not item.gathers
    if group.product is None:
        return True
    return (
        level is Level.ROW
        and any(base in group.members for base, _ in item.reads)
        and len(beside(group) | beside(item) - group.members.keys()) <= MOST_BESIDE
    )


def _is_scattered_by(group: Group, item: Item) -> bool:
    """What is made of a product may be added to memory instead of stored."""
    return group.product is not None and isinstance(item.definition, Scattered)


def beside(of: Group | Item) -> set[fx.Node]:
    """What is read beside a product, to be made something of with it."""
    items = [i for i in of.items if i is not of.product] if isinstance(of, Group) else [of]
    count = items[0].count if items else 0
    reads = {base for item in items for base, _ in item.reads}
    known = of.members.keys() if isinstance(of, Group) else set()
    return {b for b in reads - known if same(product(shape_of(b)), count)}


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
