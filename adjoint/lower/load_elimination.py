"""Load elimination after fusion: a kernel recomputes a value from tensors that it reads anyway.

On a memory-bound target the arithmetic is free, and the load is saved.  If all readers recompute
the value, its store is saved, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from adjoint.lower.definitions import CONSTANTS, Mapped, Multiplied
from adjoint.lower.groups import Group, Level
from adjoint.lower.index import Axis, of_axis
from adjoint.lower.inlining import bytes_for, is_quick, is_small
from adjoint.lower.items import Item, with_inlined
from adjoint.lower.views import MultiIndex

# A read tensor, and the index in terms of the numbers of axes: comparable between items.
Read: TypeAlias = tuple[fx.Node, MultiIndex]


def eliminate_loads(
    groups: Sequence[Group], nodes: Iterable[fx.Node], outside: Set[fx.Node]
) -> list[Group]:
    """The groups with values recomputed, and without values that are no longer read.

    `nodes`: those of all items, in order.  `outside`: values that library calls or outputs need.
    """
    search = _LoadElimination(groups, outside)
    # Last first: a group that recomputes a value reads its sources, which may be recomputed next.
    for node in reversed(list(nodes)):
        search.consider(node)
    return [group for group in groups if group.members]


class _LoadElimination:
    def __init__(self, groups: Sequence[Group], outside: Set[fx.Node]) -> None:
        self.outside = outside
        self.group_of = {node: group for group in groups for node in group.members}
        self.bases = {group: _bases(group) for group in groups}
        self.readers: dict[fx.Node, set[Group]] = {}
        for group, bases in self.bases.items():
            for base in bases:
                self.readers.setdefault(base, set()).add(group)

    def consider(self, node: fx.Node) -> None:
        home, readers = self.group_of.get(node), self._others(node)
        if home is None or not readers:
            return
        item, _ = home.members[node]
        if not isinstance(item.definition, Mapped) or node.target in CONSTANTS:
            return
        read = {base for base, _ in item.reads if not is_small(base, item.count)}
        chosen = self._chosen(item, {group: read - self.bases[group] for group in readers})
        if not chosen:
            return
        found = {group: _change(group, item) for group in chosen}
        changes = {group: change for group, change in found.items() if change is not None}
        for group in self._chosen(item, {group: each.more for group, each in changes.items()}):
            group.members.update(changes[group].members)
            self._update(group)
        if node not in self.outside and not self.readers[node]:
            del home.members[node]
            self._update(home)

    def _others(self, node: fx.Node) -> set[Group]:
        """The groups that read the value from memory."""
        return self.readers.get(node, set()) - {self.group_of.get(node)}

    def _chosen(self, item: Item, more: Mapping[Group, Set[fx.Node]]) -> list[Group]:
        """The groups that should recompute an item; `more`: what each has to read in addition."""
        if item.node not in self.outside and len(more) == len(self._others(item.node)):
            read = [base for each in more.values() for base in each]
            stored = [base for base in set(read) if not self._is_stored(base)]
            # It saves one store, and one load for each reader.
            gain = bytes_for(item.node, item.count) * (1 + len(more))
            if sum(bytes_for(base, item.count) for base in (*read, *stored)) < gain:
                return list(more)
        return [group for group in more if not more[group]]

    def _is_stored(self, node: fx.Node) -> bool:
        return node not in self.group_of or node in self.outside or bool(self._others(node))

    def _update(self, group: Group) -> None:
        before, after = self.bases[group], _bases(group)
        for base in before - after:
            self.readers[base].discard(group)
        for base in after - before:
            self.readers.setdefault(base, set()).add(group)
        self.bases[group] = after


def _bases(group: Group) -> set[fx.Node]:
    return {base for item in group.items for base, _ in item.reads}


@dataclass(frozen=True)
class _Change:
    """Members of a group that recompute a value instead of reading it."""

    members: dict[fx.Node, tuple[Item, Level]]
    more: set[fx.Node]
    """Tensors that they read for it and the group did not read before."""


def _change(group: Group, value: Item) -> _Change | None:
    """None: recomputing the value is slower than reading it."""
    read = {read for item in group.items for read in _reads(item)}
    change = _Change({}, set())
    for node, (item, level) in group.members.items():
        changed = with_inlined(item, {value.node: value.definition})
        assert changed is not None, "elementwise definitions can be inlined"
        if changed is item:
            continue
        new = {base for base, _ in _reads(changed) - read if not is_small(base, item.count)}
        if isinstance(item.definition, Multiplied) or (new and changed.gathers):
            return None
        if not is_quick(value, item):
            return None
        change.members[node] = changed, level
        change.more.update(new)
    return change


def _reads(item: Item) -> set[Read]:
    places = {axis: of_axis(Axis(str(n), axis.extent)) for n, axis in enumerate(item.axes)}
    return {(base, tuple(i.replaced(places) for i in index)) for base, index in item.reads}
