"""What a kernel can compute from what it reads anyway, it does not read.

Once it is known what is computed together, a value may turn out to be made of tensors that its
readers read besides.  Then they compute it again: that takes no time where threads wait for memory,
and if all of them do so, no one stores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from adjoint.lower.definitions import CONSTANTS, Mapped, Multiplied
from adjoint.lower.fusion import Group, Level
from adjoint.lower.index import Axis, of_axis
from adjoint.lower.inlining import bytes_for, is_quick, is_small
from adjoint.lower.items import Item, reading_through
from adjoint.lower.views import Where

# Where a tensor is read, by the places of axes instead of their names.
Read: TypeAlias = tuple[fx.Node, Where]


def read_less(
    groups: Sequence[Group], nodes: Iterable[fx.Node], outside: Set[fx.Node]
) -> list[Group]:
    """The groups, with items changed, and without those that no one reads any more.

    `nodes`: all of them, in order.  `outside`: what others than items need.
    """
    rereading = _Rereading(groups, outside)
    # The last first: who computes one of them reads what it is made of.
    for node in reversed(list(nodes)):
        rereading.consider(node)
    return [group for group in groups if group.members]


class _Rereading:
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
        """The groups that read it from memory."""
        return self.readers.get(node, set()) - {self.group_of.get(node)}

    def _chosen(self, item: Item, more: Mapping[Group, Set[fx.Node]]) -> list[Group]:
        """The groups that compute an item again, if they read so much more for it."""
        if item.node not in self.outside and len(more) == len(self._others(item.node)):
            read = [base for each in more.values() for base in each]
            stored = [base for base in set(read) if not self._is_stored(base)]
            # Without it there is one store less, and one load less for each reader.
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
    """Members of a group that compute what they read so far."""

    members: dict[fx.Node, tuple[Item, Level]]
    more: set[fx.Node]
    """What they read for it that the group does not read anyway."""


def _change(group: Group, again: Item) -> _Change | None:
    """None: one of them would wait too long for what it reads, or has no time to compute it."""
    at_hand = {read for item in group.items for read in _reads(item)}
    change = _Change({}, set())
    for node, (item, level) in group.members.items():
        changed = reading_through(item, {again.node: again.definition})
        assert changed is not None, "what is mapped can be read through"
        if changed is item:
            continue
        new = {base for base, _ in _reads(changed) - at_hand if not is_small(base, item.count)}
        if isinstance(item.definition, Multiplied) or (new and changed.gathers):
            return None
        if not is_quick(again, item):
            return None
        change.members[node] = changed, level
        change.more.update(new)
    return change


def _reads(item: Item) -> set[Read]:
    places = {axis: of_axis(Axis(str(n), axis.extent)) for n, axis in enumerate(item.axes)}
    return {(base, tuple(i.replaced(places) for i in index)) for base, index in item.reads}
