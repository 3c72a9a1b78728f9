"""Fusion: which items are computed in one loop nest.

An item joins the group of the values it reads, if it reads elements that the group has just
computed.  An elementwise item that reads only tensors in memory is deferred until its first reader,
and joins the reader's group.  Where a reader needs a few elements that its group does not compute
at that point, they are inlined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from torch import fx

from adjoint.graph.metadata import run_of
from adjoint.lower.definitions import Definition, Mapped
from adjoint.lower.groups import Group, Level, enter
from adjoint.lower.inlining import is_small
from adjoint.lower.items import Item, with_inlined
from adjoint.lower.sizes import Size, estimate, quotient
from adjoint.lower.transitive_closure import TransitiveClosure
from adjoint.target import Target
from adjoint.torch_private.symbols import same_number

# Limits of one group: more would not fit into registers and caches, and compile slowly.
MAX_ITEMS = 32
MAX_BUFFERS = 40

# From this many elements on, memory matters more than the number of launches.
LARGE_GROUP_ELEMENTS = 1 << 20

# The most tensors that an inlined item reads, and the most items inlined for one reader.
MAX_INLINED_READS = 2
MAX_INLINED_ITEMS = 8

# Groups, counted from the latest, among which an item looks for one that reads the same tensors.
RECENT_GROUPS = 12


def fuse(
    items: Iterable[Item],
    needs: dict[fx.Node, set[fx.Node]],
    stored: Set[fx.Node],
    target: Target,
) -> list[Group]:
    """Groups that can run one after another, between library calls.

    `needs`: the dependencies of each node.  `stored`: items that library calls or outputs need.  An
    item that is inlined wherever it is read is in no group.
    """
    return _Fusion(needs, stored, target).run(items)


class _Fusion:
    def __init__(
        self, needs: dict[fx.Node, set[fx.Node]], stored: Set[fx.Node], target: Target
    ) -> None:
        self.needs = dict(needs)
        self.stored = stored
        self.target = target
        self.groups: list[Group] = []
        self.order: dict[Group, int] = {}
        """The number of each group, in the order in which they were created."""
        self.group_of: dict[fx.Node, Group] = {}
        self.deferred: dict[fx.Node, Item] = {}
        self.reached = TransitiveClosure()
        """Of groups, and of nodes that are in none."""

    def run(self, items: Iterable[Item]) -> list[Group]:
        for item in items:
            if self.is_deferrable(item):
                self.deferred[item.node] = item
            else:
                self.place(item)
        return self.groups

    def is_deferrable(self, item: Item) -> bool:
        return (
            isinstance(item.definition, Mapped)
            and item.node not in self.stored
            and not any(base in self.group_of for base, _ in item.reads)
        )

    def deferred_sources(self, item: Item) -> list[Item]:
        """The deferred items that an item depends on, in order."""
        found: set[fx.Node] = set()
        work = [item]
        while work:
            for base, _ in work.pop().reads:
                if base in self.deferred and base not in found:
                    found.add(base)
                    work.append(self.deferred[base])
        return [source for node, source in self.deferred.items() if node in found]

    def place(self, item: Item) -> None:
        """Put the item and its deferred sources into groups."""
        for source in self.deferred_sources(item):
            # A source of another size is in the item's group only if it can be inlined.
            if source.node in self.deferred and not (
                same_number(source.count, item.count) or _is_cheap(source)
            ):
                self.place(self.deferred.pop(source.node))
        together = [*self.deferred_sources(item), item]
        if self.join_merged(together):
            return
        for group in [*self.candidates(together), Group(item.shape)]:
            if self.join_together(together, group):
                return
        for each in together:
            self.deferred.pop(each.node, None)
            if not any(self.join_together([each], group) for group in self.candidates([each])):
                alone = self.join_together([each], Group(each.shape))
                assert alone

    def join_together(self, items: Sequence[Item], group: Group) -> bool:
        """Add an item, the last, and its sources to the group; all of them, or none."""
        before = group.shape, group.columns, dict(group.members), list(group.row_sums)
        joined: list[fx.Node] = []
        inlined: dict[fx.Node, Definition] = {}
        for item in items:
            candidate = with_inlined(item, inlined)
            if candidate is not None and self.joins(candidate, group):
                joined.append(item.node)
            elif candidate is not None and item is not items[-1] and _is_cheap(candidate):
                inlined[item.node] = candidate.definition
            else:
                group.shape, group.columns, group.members, group.row_sums = before
                return False
        for node in joined:
            self.deferred.pop(node, None)
            self.group_of[node] = group
            self.needs[node] = _needs(group.members[node][0])
            self.reached.add(group, self.closure(self.needs[node]))
            if node in self.reached:
                self.reached.add(node, self.reached.row(group))
        if group not in self.order:
            self.order[group] = len(self.order)
            self.groups.append(group)
        return True

    def join_merged(self, items: Sequence[Item]) -> bool:
        """Merge the groups that compute what the items read, and add the items."""
        producers = self.producers(items)
        if len(producers) < 2:
            return False
        whole, parts = producers[0], producers[:1]
        read = {base for item in items for base, _ in item.reads}
        for other in producers[1:]:
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
        """Whether to fuse two groups of `count` elements that have the tensors `shared` in common.

        All that a group reads and writes is in memory at the same time.  Large groups are fused
        only if that saves the traffic of a large tensor.
        """
        if not self.target.is_memory_bound or estimate(count) < LARGE_GROUP_ELEMENTS:
            return True
        return not all(is_small(base, count) for base in shared)

    def merged(self, one: Group, other: Group) -> Group | None:
        """A group that computes what both do, if there is one."""
        if len(one.members) + len(other.members) > MAX_ITEMS:
            return None
        if not same_number(one.count, other.count):
            return None
        needed = {each: {n for item in each.items for n in _needs(item)} for each in (one, other)}
        if self.depends(needed[one], other, one) or self.depends(needed[other], one, other):
            return None
        parts = (other, one) if needed[one] & other.members.keys() else (one, other)
        whole = Group(parts[0].shape)
        for item in (item for part in parts for item in part.items):
            level = None if item.checked & whole.members.keys() else self.enter(item, whole)
            if level is None or len(whole.buffers()) >= MAX_BUFFERS:
                return None
            whole.members[item.node] = (item, level)
        return whole

    def enter(self, item: Item, group: Group) -> Level | None:
        return enter(item, group, on_grid=self.target.has_grid)

    def producers(self, items: Sequence[Item]) -> list[Group]:
        """Groups that compute what items read, the latest first."""
        bases = {base for item in items for base, _ in item.reads}
        found = {self.group_of[base] for base in bases if base in self.group_of}
        return sorted(found, key=self.order.__getitem__, reverse=True)

    def candidates(self, items: Sequence[Item]) -> list[Group]:
        """Groups that compute what items read, the latest first; then groups that read the same.

        Not those of another checkpoint: it is recomputed when its own derivative is computed.
        """
        bases = {base for item in items for base, _ in item.reads}
        producers = self.producers(items)
        run = run_of(items[-1].node)
        siblings = [
            group
            for group in reversed(self.groups[-RECENT_GROUPS:])
            if group not in producers
            and run_of(next(iter(group.members))) == run
            and (shared := bases & {base for each in group.items for base, _ in each.reads})
            and self.is_worth_it(shared, group.count)
        ]
        return [*producers, *siblings]

    def joins(self, item: Item, group: Group) -> bool:
        """Add the item to the group, if it fits."""
        if len(group.members) >= MAX_ITEMS or len(group.buffers()) >= MAX_BUFFERS:
            return False
        for candidate in (item, _for_rows(item, group)):
            if candidate is None or candidate.checked & group.members.keys():
                continue
            if self.depends(_needs(candidate), group):
                continue
            level = self.enter(candidate, group)
            if level is not None:
                group.members[item.node] = (candidate, level)
                return True
        return False

    def depends(self, needs: Set[fx.Node], group: Group, own: Group | None = None) -> bool:
        """Whether one of `needs`, outside of both groups, depends on the group: a cycle."""
        inside = group.members.keys() | (own.members.keys() if own else set())
        outside = [need for need in needs if need not in inside]
        target = 0
        for member in group.members:
            target |= self.reached.bit(self.unit(member))
        return bool(target & self.closure(outside))

    def unit(self, node: fx.Node) -> Group | fx.Node:
        return self.group_of.get(node, node)

    def closure(self, nodes: Iterable[fx.Node]) -> int:
        """The nodes and everything they depend on, as a set of `reached`."""
        needed = 0
        for node in nodes:
            if self.unit(node) not in self.reached:
                self.reach(node)
            needed |= self.reached.row(self.unit(node))
        return needed

    def reach(self, node: fx.Node) -> None:
        """Add to `reached` a node that is in no group, and what it depends on."""
        work = [node]
        while work:
            needs = self.needs.get(work[-1], set())
            unknown = [need for need in needs if self.unit(need) not in self.reached]
            if unknown:
                work += unknown
            else:
                self.reached.add(work.pop(), self.closure(needs))


def _needs(item: Item) -> set[fx.Node]:
    return {base for base, _ in item.reads} | item.checked


def _is_cheap(item: Item) -> bool:
    """Whether computing an element costs little more than reading it."""
    return (
        isinstance(item.definition, Mapped)
        and not item.definition.bounds
        and not item.has_math
        and len(item.reads) <= MAX_INLINED_READS
    )


def _for_rows(item: Item, group: Group) -> Item | None:
    """The item as one value for each row, with the elements it reads of full items inlined."""
    if group.columns is None or item.is_reduction:
        return None
    rows = quotient(group.count, group.columns)
    if rows is None or not same_number(rows, item.count):
        return None
    inlined: dict[fx.Node, Definition] = {}
    row_item: Item | None = item
    while row_item is not None and len(inlined) <= MAX_INLINED_ITEMS:
        full = [base for base, _ in row_item.reads if group.level(base) is Level.FULL]
        if not full:
            return row_item if inlined else None
        inlined |= {base: group.members[base][0].definition for base in full}
        row_item = with_inlined(item, inlined)
    return None
