"""Recomputation: which values late readers recompute, so that the peak of memory falls.

Most of the memory at the peak is values that wait for a reader far away.  An elementwise function
of values that are in memory anyway need not wait: late readers recompute it
(`lower/rematerialization.py`).  That is done where it lowers the peak for little extra traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import fx

from adjoint.loops.footprint import profile
from adjoint.lower.definitions import Mapped, Multiplied
from adjoint.lower.fusion import MAX_BUFFERS
from adjoint.lower.groups import MAX_EPILOGUE_READS, Group, epilogue_reads
from adjoint.lower.inlining import (
    MAX_INLINED_FUNCTIONS,
    MAX_INLINED_OPERATORS,
    bytes_read,
    is_coalesced,
)
from adjoint.lower.items import Item
from adjoint.lower.rematerialization import Move, Recipe, Rematerialization, State
from adjoint.lower.row_tiles import Unit
from adjoint.lower.sizes import product
from adjoint.lower.views import shape_of
from adjoint.torch_private.symbols import same_number

# Nothing is recomputed to lower a smaller peak.
MIN_PEAK_BYTES = 1 << 25

# Values below 1 / MAX_PARTS of the peak are not considered.
MAX_PARTS = 256

# The most extra memory traffic, as a fraction of all traffic.
MAX_EXTRA_TRAFFIC = 0.03

# Recompute while each 1 % of extra traffic saves at least this many percent of peak memory.
MIN_SAVING_PER_TRAFFIC = 4


class Recomputation(Rematerialization):
    """A search for values to recompute, while the peak falls."""

    # The search

    def run(self, operators_per_byte: int) -> tuple[list[Unit], dict[fx.Node, fx.Node]]:
        """The units, with twins among them; and for each twin, what it is a twin of.

        `operators_per_byte`: the operators that take as long as a byte of memory traffic.
        """
        self.operators_per_byte = operators_per_byte
        self.recomputable: dict[Item, bool] = {}
        self.coalesced: dict[tuple[Item, fx.Node], bool] = {}
        if self.lives.most < MIN_PEAK_BYTES:
            return self.units, {}
        whole, first = sum(map(self.traffic, self.units)), self.lives.most
        before = self.budget = int(MAX_EXTRA_TRAFFIC * whole)
        best, peak = State(self), first
        waiting: list[list[fx.Node]] = []
        while self.go_on(waiting) or self.go_on(waiting := self.proposals()):
            self.lives = self.lifetimes()
            spent, gained = (before - self.budget) / whole, 1 - self.lives.most / first
            if self.lives.most < peak and spent * MIN_SAVING_PER_TRAFFIC <= gained:
                best, peak = State(self), self.lives.most
        # Later moves lowered the peak at one unit, but not at others as high.
        best.restore(self)
        self.finish()
        return self.units, self.twins

    @property
    def peak(self) -> int:
        """The first of the units at which most memory is in use."""
        return self.lives.bytes.index(self.lives.most)

    def proposals(self) -> list[list[fx.Node]]:
        """Values to recompute, those first that lower the peak for the least traffic."""
        place = self.peak
        recipes: dict[fx.Node, Recipe | None] = {}
        there = [node for node in self.lives.first if self.lives.is_there(node, place)]
        moves = [move for node in there if (move := self.move(node, place, recipes))]
        found: list[tuple[float, int, list[fx.Node]]] = []
        for together in self.bundles(moves, place):
            gain, traffic = self.gain(together, place), self.extra_traffic(together)
            if gain > 0 and traffic <= self.budget:
                nodes = [move.node for move in together]
                found.append((max(traffic, 0) / gain, -gain, nodes))
        return [nodes for _, _, nodes in sorted(found, key=lambda each: each[:2])]

    def go_on(self, waiting: list[list[fx.Node]]) -> bool:
        """Apply the first of the proposals that lowers the current peak."""
        place = self.peak
        recipes: dict[fx.Node, Recipe | None] = {}
        while waiting:
            moves = [self.move(node, place, recipes) for node in waiting.pop(0)]
            together = _independent([move for move in moves if move is not None])
            traffic = self.extra_traffic(together)
            if together and traffic <= self.budget and self.lowers(together, place):
                self.budget -= traffic
                self.apply(together)
                return True
        return False

    def bundles(self, moves: Sequence[Move], place: int) -> Iterator[list[Move]]:
        """Single moves, and sets of moves whose sources have to live longer, and are the same."""
        longer = {
            move: frozenset(s for s in move.recipe.sources if not self.is_there(s, place))
            for move in moves
        }
        for move in moves:
            if not longer[move]:
                yield [move]
        for sources in dict.fromkeys(each for each in longer.values() if each):
            together = [move for move in moves if longer[move] and longer[move] <= sources]
            yield _independent(together)

    def move(self, node: fx.Node, place: int, recipes: dict[fx.Node, Recipe | None]) -> Move | None:
        """The move that takes the value out of memory at `place`; None if there is none."""
        if node in self.fixed or self.size(node) * MAX_PARTS < self.lives.most:
            return None
        if node in self.twins:
            # A twin is computed as late as possible.
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
        most: int = MAX_INLINED_OPERATORS,
    ) -> Recipe | None:
        """How to recompute a value from what is in memory at `place`, or from earlier values.

        `most`: limits the depth, as each step takes an operator.
        """
        if node not in recipes:
            recipes[node] = self.new_recipe(node, place, recipes, most) if most else None
        return recipes[node]

    def new_recipe(
        self, node: fx.Node, place: int, recipes: dict[fx.Node, Recipe | None], most: int
    ) -> Recipe | None:
        item = self.item(node)
        if item is None or not self.is_recomputable(item):
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
        if operators > MAX_INLINED_OPERATORS or functions > MAX_INLINED_FUNCTIONS:
            return None
        return Recipe(frozenset(sources), frozenset(through), operators, functions)

    def longer(self, recipe: Recipe, place: int) -> int:
        """Bytes of sources that have to live longer."""
        return sum(self.size(each) for each in recipe.sources if not self.is_there(each, place))

    def is_recomputable(self, item: Item) -> bool:
        if item not in self.recomputable:
            self.recomputable[item] = _is_recomputable(item)
        return self.recomputable[item]

    def reads_coalesced(self, reader: Item, node: fx.Node) -> bool:
        """Whether the reader reads each element of the value once, in order."""
        if (reader, node) not in self.coalesced:
            places = [index for base, index in reader.reads if base is node]
            self.coalesced[reader, node] = not places or (
                not isinstance(reader.definition, Multiplied)
                and same_number(reader.count, product(shape_of(node)))
                and all(is_coalesced(reader, node, index) for index in places)
            )
        return self.coalesced[reader, node]

    def is_computed_inside(self, node: fx.Node, recipe: Recipe, place: int) -> bool:
        """Whether the unit can recompute the value where it reads it."""
        group = self.units[place]
        if not isinstance(group, Group):
            return False
        if not all(self.reads_coalesced(item, node) for item in group.items):
            return False
        read = (self.read(group) - {node}) | recipe.sources
        if len(read) + len(group.members) > MAX_BUFFERS:
            return False
        if group.product is None:
            return True
        full = {each for each in recipe.sources if self.size(each) >= self.size(node)}
        return len((epilogue_reads(group) - {node}) | full) <= MAX_EPILOGUE_READS

    # Gains and costs

    def gain(self, moves: Sequence[Move], place: int) -> int:
        """By how many bytes memory falls at `place`."""
        sources = {source for move in moves for source in move.recipe.sources}
        longer = sum(self.size(each) for each in sources if not self.is_there(each, place))
        return sum(self.size(move.node) for move in moves) - longer

    def extra_traffic(self, moves: Sequence[Move]) -> int:
        """The change of memory traffic in bytes, with operators converted to bytes."""
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

    def lowers(self, moves: Sequence[Move], place: int) -> bool:
        """Whether memory falls at `place`, and nowhere rises to what `place` uses now."""
        first, last = self.lives.first, self.lives.last
        spans: list[tuple[int, int, int]] = []
        until: dict[fx.Node, int] = {}
        for move in moves:
            node, size = move.node, self.size(move.node)
            spans.append((first[node] if move.early < 0 else move.early + 1, last[node], -size))
            if move.before:
                spans.append((move.before[0], move.before[-1], size))
            for source in move.recipe.sources:
                until[source] = max(until.get(source, 0), move.needed)
        for source, end in until.items():
            if source in first and end > last[source]:
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


def _independent(moves: Sequence[Move]) -> list[Move]:
    """A subset of moves, none of which removes a source of another."""
    found: list[Move] = []
    for move in moves:
        if not any(
            move.node in other.recipe.sources or other.node in move.recipe.sources
            for other in found
        ):
            found.append(move)
    return found


def _is_recomputable(item: Item) -> bool:
    """Whether the item is elementwise, has coalesced loads and draws no random numbers."""
    return (
        isinstance(item.definition, Mapped)
        and not item.checked
        and not item.gathers
        and "philox" not in item.applied
        and bytes_read(item) < math.inf
    )
