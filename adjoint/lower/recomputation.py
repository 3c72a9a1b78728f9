"""Values that are computed again where they are read late, so that less memory is in use at once.

Most of what is in memory where most is (at the *peak*) waits for a reader far away.  What is mapped
from values that are there anyway need not wait: kernels that read it late compute it as they read
it, and for others a *twin* of it is made just before.  That is done where it lowers the peak, and
costs little traffic; where a kernel reads what the value is made of anyway, it saves some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import fx

from adjoint.lower.definitions import Definition, Mapped, Multiplied
from adjoint.lower.fusion import MOST_BESIDE, MOST_BUFFERS, Group, Level, beside
from adjoint.lower.inlining import (
    MOST_FUNCTIONS,
    MOST_OPERATORS,
    bytes_read,
    lies_along,
)
from adjoint.lower.items import Item, base_of, item_of, reading_through
from adjoint.lower.lifetimes import Lifetimes, bytes_of, profile, reads_of, results_of
from adjoint.lower.sizes import product, same
from adjoint.lower.tiling import Unit
from adjoint.lower.views import PARTS, shape_of, view_of
from adjoint.rules.costs import effort

# Where less is in use, nobody lacks memory.
LEAST_PEAK = 1 << 25

# What is a smaller part of the peak than this does not matter.
LEAST_PART = 256

# Kernels wait for memory: they may read and write so much more in all, as a part of what they do.
MOST_TRAFFIC = 0.03

# A hundredth more of traffic is worth so many hundredths less of memory.
WORTH = 4


@dataclass(frozen=True)
class Recipe:
    """How a value is computed again."""

    sources: frozenset[fx.Node]
    """What is read for it."""
    through: frozenset[fx.Node]
    """What is computed on the way, and itself."""
    operators: int
    functions: int

    @property
    def effort(self) -> int:
        return effort(self.operators, self.functions)


@dataclass(frozen=True)
class Move:
    """A value that late readers compute again."""

    node: fx.Node
    recipe: Recipe
    early: int
    """The last unit that reads the value itself; -1: none does."""
    inside: tuple[int, ...]
    """Units that compute it as they read it."""
    before: tuple[int, ...]
    """Units that read a twin, which is made before the first of them."""

    @property
    def needed(self) -> int:
        """The last unit that reads the sources."""
        return max((*self.inside, *self.before[:1]))


class Recomputation:
    """A search for values to compute again, while the peak falls."""

    def __init__(
        self,
        units: Sequence[Unit],
        graph: fx.Graph,
        needs: dict[fx.Node, set[fx.Node]],
        stored: set[fx.Node],
        kept: Set[fx.Node],
        shares: Callable[[fx.Node], bool],
        operators_per_byte: int,
    ) -> None:
        """`needs`: what each node reads, and `stored`: which members of groups are in memory; both
        are brought up to date.  `kept` and `shares` are as for lifetimes.
        """
        self.units = list(units)
        self.graph = graph
        self.needs = needs
        self.stored = stored
        self.kept = kept
        self.shares = shares
        self.operators_per_byte = operators_per_byte
        self.instead: dict[fx.Node, dict[fx.Node, fx.Node]] = {}
        """For calls: the twins that they take."""
        self.twins: dict[fx.Node, fx.Node] = {}
        self.sizes: dict[fx.Node, int] = {}
        self.reads: dict[Unit, Set[fx.Node]] = {}
        self.mapped: dict[Item, bool] = {}
        self.along: dict[tuple[Item, fx.Node], bool] = {}
        self.lives = self.lifetimes()

    # What there is

    def size(self, node: fx.Node) -> int:
        if node not in self.sizes:
            self.sizes[node] = bytes_of(node)
        return self.sizes[node]

    def count(self, node: fx.Node) -> int:
        item_size: int = node.meta["val"].dtype.itemsize
        return self.size(node) // item_size

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
        return sum(map(self.size, (*self.read(unit), *results_of(unit, self.stored))))

    # What to do

    def run(self) -> tuple[list[Unit], dict[fx.Node, fx.Node]]:
        """The units, with twins among them; and for each twin, what it is a twin of."""
        if self.lives.most < LEAST_PEAK:
            return self.units, {}
        whole, first = sum(map(self.traffic, self.units)), self.lives.most
        before = self.budget = int(MOST_TRAFFIC * whole)
        best, peak = _State(self), first
        waiting: list[list[fx.Node]] = []
        while self.go_on(waiting) or self.go_on(waiting := self.proposals()):
            self.lives = self.lifetimes()
            spent, gained = (before - self.budget) / whole, 1 - self.lives.most / first
            if self.lives.most < peak and spent * WORTH <= gained:
                best, peak = _State(self), self.lives.most
        # What came after lowered the peak of one place, but there are others as high.
        best.restore(self)
        self.finish()
        return self.units, self.twins

    @property
    def peak(self) -> int:
        """The first of the units at which most memory is in use."""
        return self.lives.bytes.index(self.lives.most)

    def proposals(self) -> list[list[fx.Node]]:
        """Values to compute again, those first that lower the peak for the least traffic."""
        place = self.peak
        recipes: dict[fx.Node, Recipe | None] = {}
        there = [node for node in self.lives.made if self.lives.is_there(node, place)]
        moves = [move for node in there if (move := self.move(node, place, recipes))]
        found: list[tuple[float, int, list[fx.Node]]] = []
        for together in self.bundles(moves, place):
            gain, traffic = self.gain(together, place), self.extra_traffic(together)
            if gain > 0 and traffic <= self.budget:
                nodes = [move.node for move in together]
                found.append((max(traffic, 0) / gain, -gain, nodes))
        return [nodes for _, _, nodes in sorted(found, key=lambda each: each[:2])]

    def go_on(self, waiting: list[list[fx.Node]]) -> bool:
        """Do the first of the proposals that lowers the peak, wherever that is by now."""
        place = self.peak
        recipes: dict[fx.Node, Recipe | None] = {}
        while waiting:
            moves = [self.move(node, place, recipes) for node in waiting.pop(0)]
            together = _apart([move for move in moves if move is not None])
            traffic = self.extra_traffic(together)
            if together and traffic <= self.budget and self.lowers(together, place):
                self.budget -= traffic
                self.do(together)
                return True
        return False

    def bundles(self, moves: Sequence[Move], place: int) -> Iterator[list[Move]]:
        """Moves that share what has to be kept longer for them."""
        longer = {
            move: frozenset(s for s in move.recipe.sources if not self.is_there(s, place))
            for move in moves
        }
        for move in moves:
            if not longer[move]:
                yield [move]
        for sources in dict.fromkeys(each for each in longer.values() if each):
            yield _apart([move for move in moves if longer[move] and longer[move] <= sources])

    def is_there(self, node: fx.Node, place: int) -> bool:
        """In memory while the unit at `place` runs."""
        if node in self.group_of and node not in self.stored:
            return False
        return self.lives.is_there(node, place)

    def move(self, node: fx.Node, place: int, recipes: dict[fx.Node, Recipe | None]) -> Move | None:
        """What would take the value out of memory at `place`."""
        if node in self.fixed or self.size(node) * LEAST_PART < self.lives.most:
            return None
        if node in self.twins:
            # It is as late as it can be.
            return None
        recipe = self.recipe(node, place, recipes)
        if recipe is None:
            return None
        readers = self.lives.readers.get(node, [])
        late = [each for each in readers if each >= place]
        inside = [each for each in late if self.is_computed_inside(node, recipe, each)]
        before = [each for each in late if each not in inside]
        if not late or place in before:
            return None
        early = max((each for each in readers if each < place), default=-1)
        return Move(node, recipe, early, tuple(inside), tuple(before))

    def recipe(
        self,
        node: fx.Node,
        place: int,
        recipes: dict[fx.Node, Recipe | None],
        most: int = MOST_OPERATORS,
    ) -> Recipe | None:
        """How to compute it from what is there at `place`, or else from what is made before.

        `most`: so far back, at most, as each step takes an operator.
        """
        if node not in recipes:
            recipes[node] = self.new_recipe(node, place, recipes, most) if most else None
        return recipes[node]

    def new_recipe(
        self, node: fx.Node, place: int, recipes: dict[fx.Node, Recipe | None], most: int
    ) -> Recipe | None:
        item = self.item(node)
        if item is None or not self.may_be_done_again(item):
            return None
        operators, functions = len(item.applied), item.functions
        sources: set[fx.Node] = set()
        through = {node}
        for base in dict.fromkeys(base for base, _ in item.reads):
            if self.is_there(base, place):
                sources.add(base)
                continue
            inner = self.recipe(base, place, recipes, most - 1)
            if inner is not None and self.longer(inner, place) < self.size(base):
                sources |= inner.sources
                through |= inner.through
                operators += inner.operators
                functions += inner.functions
            elif base in self.fixed:
                return None
            else:
                sources.add(base)
        if operators > MOST_OPERATORS or functions > MOST_FUNCTIONS:
            return None
        return Recipe(frozenset(sources), frozenset(through), operators, functions)

    def longer(self, recipe: Recipe, place: int) -> int:
        """Bytes that have to be in memory longer for it."""
        return sum(self.size(each) for each in recipe.sources if not self.is_there(each, place))

    def may_be_done_again(self, item: Item) -> bool:
        if item not in self.mapped:
            self.mapped[item] = _may_be_done_again(item)
        return self.mapped[item]

    def is_along(self, reader: Item, node: fx.Node) -> bool:
        """It reads the value once, element after element."""
        if (reader, node) not in self.along:
            places = [index for base, index in reader.reads if base is node]
            self.along[reader, node] = not places or (
                not isinstance(reader.definition, Multiplied)
                and same(reader.count, product(shape_of(node)))
                and all(lies_along(reader, node, index) for index in places)
            )
        return self.along[reader, node]

    def is_computed_inside(self, node: fx.Node, recipe: Recipe, place: int) -> bool:
        """The unit can compute the value wherever it reads it."""
        group = self.units[place]
        if not isinstance(group, Group) or not all(self.is_along(i, node) for i in group.items):
            return False
        read = (self.read(group) - {node}) | recipe.sources
        if len(read) + len(group.members) > MOST_BUFFERS:
            return False
        if group.product is None:
            return True
        full = {each for each in recipe.sources if self.size(each) >= self.size(node)}
        return len((beside(group) - {node}) | full) <= MOST_BESIDE

    # What it would mean

    def gain(self, moves: Sequence[Move], place: int) -> int:
        sources = {source for move in moves for source in move.recipe.sources}
        longer = sum(self.size(each) for each in sources if not self.is_there(each, place))
        return sum(self.size(move.node) for move in moves) - longer

    def extra_traffic(self, moves: Sequence[Move]) -> int:
        """Bytes that are read and written besides, or (below zero) no longer, and operators."""
        total = 0
        read: dict[tuple[str, int], set[fx.Node]] = {}
        for move in moves:
            size = self.size(move.node)
            total -= size * (move.early < 0)
            again = len(move.inside) + bool(move.before)
            total += again * move.recipe.effort * self.count(move.node) // self.operators_per_byte
            for place in move.inside:
                read.setdefault(("inside", place), set()).update(move.recipe.sources)
                total -= size
            for place in move.before[:1]:
                read.setdefault(("before", place), set()).update(move.recipe.sources)
                total += size
        for (where, place), sources in read.items():
            new = sources - self.read(self.units[place]) if where == "inside" else sources
            total += sum(map(self.size, new))
        return total + sum(map(self.size, self.newly_stored(moves)))

    def newly_stored(self, moves: Sequence[Move]) -> set[fx.Node]:
        sources = {source for move in moves for source in move.recipe.sources}
        return {each for each in sources if each in self.group_of and each not in self.stored}

    def lowers(self, moves: Sequence[Move], place: int) -> bool:
        """Less is in use at `place`, and nowhere else as much as there is there now."""
        made, last = self.lives.made, self.lives.last
        spans: list[tuple[int, int, int]] = []
        until: dict[fx.Node, int] = {}
        for move in moves:
            node, size = move.node, self.size(move.node)
            spans.append((made[node] if move.early < 0 else move.early + 1, last[node], -size))
            if move.before:
                spans.append((move.before[0], move.before[-1], size))
            for source in move.recipe.sources:
                until[source] = max(until.get(source, 0), move.needed)
        for source, end in until.items():
            if source in made and end > last[source]:
                spans.append((last[source] + 1, end, self.size(source)))
        spans += [
            (self.place_of[self.group_of[source]], until[source], self.size(source))
            for source in self.newly_stored(moves)
        ]
        now = self.lives.bytes
        changes = profile(len(now), spans)
        return changes[place] < 0 and all(
            change <= 0 or bytes_ + change < now[place]
            for bytes_, change in zip(now, changes, strict=True)
        )

    # To do it

    def do(self, moves: Sequence[Move]) -> None:
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
                self.read_through(placed[place], known)
            if move.before:
                readers = [placed[place] for place in move.before]
                self.make_twin(item, known, readers)
            if move.early < 0:
                self.stored.discard(move.node)
        for group in {self.group_of[move.node] for move in moves}:
            self.drop_unread(group)

    def read_through(self, group: Unit, known: Mapping[fx.Node, Definition]) -> None:
        """The group computes what is known where it reads it."""
        assert isinstance(group, Group)
        members: dict[fx.Node, tuple[Item, Level]] = {}
        for node, (item, level) in group.members.items():
            made = reading_through(item, known)
            assert made is not None, "what is mapped can be read through"
            members[node] = (made, level)
        group.members = members
        self.reads.pop(group, None)

    def make_twin(
        self, item: Item, known: Mapping[fx.Node, Definition], readers: Sequence[Unit]
    ) -> None:
        """A value once more, before the first that reads it."""
        with self.graph.inserting_after(item.node):
            twin = self.graph.node_copy(item.node)
        self.twins[twin] = item.node
        inner = {node: each for node, each in known.items() if node is not item.node}
        composed = reading_through(item, inner)
        assert composed is not None, "what is mapped can be read through"
        made = item_of(twin, composed.definition)
        at = self.units.index(readers[0])
        before = self.units[at - 1] if at else None
        if isinstance(before, Group) and _is_of_twins(before, made, self.twins):
            before.members = {**before.members, twin: (made, Level.FULL)}
            self.reads.pop(before, None)
        else:
            self.units.insert(at, Group(made.shape, members={twin: (made, Level.FULL)}))
        self.stored.add(twin)
        alias: Definition = Mapped(lambda index, reader: reader.read(twin, index))
        for unit in readers:
            if isinstance(unit, Group):
                self.read_through(unit, {item.node: alias})
            else:
                self.instead[unit] = {**self.instead.get(unit, {}), item.node: twin}
                self.reads.pop(unit, None)

    def drop_unread(self, group: Group) -> None:
        """What a group neither stores nor reads itself, it need not compute."""
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
        """Calls take the twins; and what everybody needs is written down."""
        for call, instead in self.instead.items():
            for node, twin in instead.items():
                self.take(call, node, twin)
            self.needs[call] = {instead.get(node, node) for node in self.needs[call]}
        for unit in self.units:
            if isinstance(unit, Group):
                for item in unit.items:
                    self.needs[item.node] = {base for base, _ in item.reads} | item.checked

    def take(self, call: fx.Node, node: fx.Node, twin: fx.Node) -> None:
        """The twin among the arguments of a call, seen as the value was."""
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


class _State:
    """What there was, to go back to."""

    def __init__(self, search: Recomputation) -> None:
        self.units = list(search.units)
        self.members = [u.members for u in self.units if isinstance(u, Group)]
        self.stored = set(search.stored)
        self.instead = dict(search.instead)
        self.twins = dict(search.twins)

    def restore(self, search: Recomputation) -> None:
        search.units = self.units
        groups = [unit for unit in self.units if isinstance(unit, Group)]
        for group, members in zip(groups, self.members, strict=True):
            group.members = members
        search.stored.clear()
        search.stored |= self.stored
        search.instead = self.instead
        for twin in search.twins:
            if twin not in self.twins:
                search.graph.erase_node(twin)
        search.twins = self.twins


def _apart(moves: Sequence[Move]) -> list[Move]:
    """Those of which none is made of what another takes away."""
    found: list[Move] = []
    for move in moves:
        if not any(
            move.node in other.recipe.sources or other.node in move.recipe.sources
            for other in found
        ):
            found.append(move)
    return found


def _may_be_done_again(item: Item) -> bool:
    """Not what reads here and there, or is drawn at random."""
    return (
        isinstance(item.definition, Mapped)
        and not item.checked
        and not item.gathers
        and "philox" not in item.applied
        and bytes_read(item) < math.inf
    )


def _is_of_twins(group: Group, item: Item, twins: Mapping[fx.Node, fx.Node]) -> bool:
    """A twin may join it."""
    return (
        all(node in twins for node in group.members)
        and group.shape == item.shape
        and not any(base in group.members for base, _ in item.reads)
    )
