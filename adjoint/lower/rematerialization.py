"""Rematerialization: units of a plan in which late readers recompute a value.

A group that reads the value late computes it from its sources as it reads it.  For other late
readers, such as library calls, a *twin* of the value is computed just before the first of them.
`lower/recomputation.py` decides which values are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import fx

from adjoint.lower.definitions import Definition, Mapped
from adjoint.lower.groups import Group, Level
from adjoint.lower.items import Item, base_of, item_of, with_inlined
from adjoint.lower.lifetimes import Lifetimes, bytes_of, reads_of, results_of
from adjoint.lower.row_tiles import Unit
from adjoint.lower.views import PARTS, dtype_of, view_of
from adjoint.rules.costs import effort


@dataclass(frozen=True)
class Recipe:
    """How a value is recomputed."""

    sources: frozenset[fx.Node]
    """The tensors that are read for it."""
    through: frozenset[fx.Node]
    """The value itself, and intermediate values that are recomputed as well."""
    operators: int
    functions: int

    @property
    def effort(self) -> int:
        """Operators for one element, with functions counted as several."""
        return effort(self.operators, self.functions)


@dataclass(frozen=True)
class Move:
    """A value that late readers recompute."""

    node: fx.Node
    recipe: Recipe
    early: int
    """The last unit that reads the value itself; -1: none does."""
    inside: tuple[int, ...]
    """Units that recompute it as they read it."""
    before: tuple[int, ...]
    """Units that read a twin, which is computed before the first of them."""

    @property
    def needed(self) -> int:
        """The last unit that reads the sources."""
        return max((*self.inside, *self.before[:1]))


class Rematerialization:
    """The units of a plan, their lifetimes, and the recomputation of values in them."""

    def __init__(
        self,
        units: Sequence[Unit],
        graph: fx.Graph,
        needs: dict[fx.Node, set[fx.Node]],
        stored: set[fx.Node],
        kept: Set[fx.Node],
        shares: Callable[[fx.Node], bool],
    ) -> None:
        """`needs`: the dependencies of each node.  `stored`: members of groups that are stored in
        memory.  Both are updated in place.  `kept` and `shares` are those of `Lifetimes`.
        """
        self.units = list(units)
        self.graph = graph
        self.needs = needs
        self.stored = stored
        self.kept = kept
        self.shares = shares
        self.instead: dict[fx.Node, dict[fx.Node, fx.Node]] = {}
        """For each library call: the twins it takes instead of values."""
        self.twins: dict[fx.Node, fx.Node] = {}
        """For each twin: the value it is a twin of."""
        self.sizes: dict[fx.Node, int] = {}
        self.reads: dict[Unit, Set[fx.Node]] = {}
        self.lives = self.lifetimes()

    # Units, and the values they read and store

    def size(self, node: fx.Node) -> int:
        if node not in self.sizes:
            self.sizes[node] = bytes_of(node)
        return self.sizes[node]

    def count(self, node: fx.Node) -> int:
        return self.size(node) // dtype_of(node).itemsize

    def read(self, unit: Unit) -> Set[fx.Node]:
        if unit not in self.reads:
            found = reads_of(unit, self.needs)
            if isinstance(unit, fx.Node) and unit in self.instead:
                found = {self.instead[unit].get(node, node) for node in found}
            self.reads[unit] = found
        return self.reads[unit]

    def lifetimes(self) -> Lifetimes:
        self.group_of: dict[fx.Node, Group] = {}
        self.place_of: dict[Unit, int] = {}
        # Values that must stay in memory: a view or an output shares it.
        self.fixed = set(self.kept)
        for place, unit in enumerate(self.units):
            self.place_of[unit] = place
            if isinstance(unit, Group):
                self.group_of.update(dict.fromkeys(unit.members, unit))
            elif self.shares(unit):
                self.fixed |= {unit, *self.read(unit)}
        return Lifetimes(self.units, self.read, self.stored, self.kept, self.shares, self.size)

    def item(self, node: fx.Node) -> Item | None:
        return self.group_of[node].members[node][0] if node in self.group_of else None

    def traffic(self, unit: Unit) -> int:
        """The bytes that a unit reads and writes."""
        return sum(map(self.size, (*self.read(unit), *results_of(unit, self.stored))))

    def is_there(self, node: fx.Node, place: int) -> bool:
        """Whether the value is in memory while the unit at `place` runs."""
        if node in self.group_of and node not in self.stored:
            return False
        return self.lives.is_there(node, place)

    # Recomputing values

    def newly_stored(self, moves: Sequence[Move]) -> set[fx.Node]:
        """Sources that have to be stored, and were only registers of their group."""
        sources = {source for move in moves for source in move.recipe.sources}
        return {each for each in sources if each in self.group_of and each not in self.stored}

    def apply(self, moves: Sequence[Move]) -> None:
        """Recompute several values; the caller has to update the lifetimes."""
        placed = list(self.units)
        self.stored |= self.newly_stored(moves)
        for move in moves:
            item = self.item(move.node)
            assert item is not None
            known = {
                node: each.definition
                for node in move.recipe.through
                if (each := self.item(node)) is not None
            }
            for place in move.inside:
                self.inline(placed[place], known)
            if move.before:
                readers = [placed[place] for place in move.before]
                self.make_twin(item, known, readers)
            if move.early < 0:
                self.stored.discard(move.node)
        for group in {self.group_of[move.node] for move in moves}:
            self.drop_unread(group)

    def inline(self, group: Unit, known: Mapping[fx.Node, Definition]) -> None:
        """Let the group compute the values of `known` where it reads them."""
        assert isinstance(group, Group)
        members: dict[fx.Node, tuple[Item, Level]] = {}
        for node, (item, level) in group.members.items():
            inlined = with_inlined(item, known)
            assert inlined is not None, "elementwise definitions can be inlined"
            members[node] = (inlined, level)
        group.members = members
        self.reads.pop(group, None)

    def make_twin(
        self, item: Item, known: Mapping[fx.Node, Definition], readers: Sequence[Unit]
    ) -> None:
        """Compute a value once more, before the first of `readers`."""
        with self.graph.inserting_after(item.node):
            twin = self.graph.node_copy(item.node)
        self.twins[twin] = item.node
        inner = {node: each for node, each in known.items() if node is not item.node}
        composed = with_inlined(item, inner)
        assert composed is not None, "elementwise definitions can be inlined"
        twin_item = item_of(twin, composed.definition)
        at = self.units.index(readers[0])
        before = self.units[at - 1] if at else None
        if isinstance(before, Group) and _may_join(before, twin_item, self.twins):
            before.members = {**before.members, twin: (twin_item, Level.FULL)}
            self.reads.pop(before, None)
        else:
            members = {twin: (twin_item, Level.FULL)}
            self.units.insert(at, Group(twin_item.shape, members=members))
        self.stored.add(twin)
        alias: Definition = Mapped(lambda index, reader: reader.read(twin, index))
        for unit in readers:
            if isinstance(unit, Group):
                self.inline(unit, {item.node: alias})
            else:
                self.instead[unit] = {**self.instead.get(unit, {}), item.node: twin}
                self.reads.pop(unit, None)

    def drop_unread(self, group: Group) -> None:
        """Dead code elimination: members that the group neither stores nor reads."""
        needed: set[fx.Node] = set()
        members: dict[fx.Node, tuple[Item, Level]] = {}
        for node, (item, level) in reversed(group.members.items()):
            if node in self.stored or node in needed:
                needed.update(base for base, _ in item.reads)
                members[node] = (item, level)
        group.members = dict(reversed(members.items()))
        self.reads.pop(group, None)
        if not members:
            self.units.remove(group)

    def finish(self) -> None:
        """Pass twins to library calls, and update the dependencies."""
        for call, instead in self.instead.items():
            for node, twin in instead.items():
                self.take(call, node, twin)
            self.needs[call] = {instead.get(node, node) for node in self.needs[call]}
        for unit in self.units:
            if isinstance(unit, Group):
                for item in unit.items:
                    self.needs[item.node] = {base for base, _ in item.reads} | item.checked

    def take(self, call: fx.Node, node: fx.Node, twin: fx.Node) -> None:
        """Replace a value by its twin among the arguments of a call, with copies of views of it."""
        copies: dict[fx.Node, fx.Node] = {node: twin}

        def copied(each: fx.Node) -> fx.Node:
            if each not in copies:
                is_view = view_of(each) is not None or each.target in PARTS
                copies[each] = self.graph.node_copy(each, copied) if is_view else each
            return copies[each]

        with self.graph.inserting_before(call):
            for argument in call.all_input_nodes:
                if base_of(argument) is node:
                    call.replace_input_with(argument, copied(argument))


class State:
    """A snapshot of the units, to go back to."""

    def __init__(self, units: Rematerialization) -> None:
        self.units = list(units.units)
        self.members = [u.members for u in self.units if isinstance(u, Group)]
        self.stored = set(units.stored)
        self.instead = dict(units.instead)
        self.twins = dict(units.twins)

    def restore(self, units: Rematerialization) -> None:
        units.units = self.units
        groups = [unit for unit in self.units if isinstance(unit, Group)]
        for group, members in zip(groups, self.members, strict=True):
            group.members = members
        units.stored.clear()
        units.stored |= self.stored
        units.instead = self.instead
        for twin in units.twins:
            if twin not in self.twins:
                units.graph.erase_node(twin)
        units.twins = self.twins


def _may_join(group: Group, item: Item, twins: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether a twin may join a group, which has only twins of the same shape."""
    return (
        all(node in twins for node in group.members)
        and group.shape == item.shape
        and not any(base in group.members for base, _ in item.reads)
    )
