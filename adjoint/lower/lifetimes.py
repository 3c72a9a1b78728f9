"""Lifetimes of values, and how much memory is in use while each unit of a plan runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set

import torch
from torch import fx

from adjoint.graph.metadata import value_or_none
from adjoint.loops.footprint import profile
from adjoint.lower.row_tiles import Unit
from adjoint.lower.sizes import estimate, product, sizes
from adjoint.torch_private import trees


class Lifetimes:
    """The first and last unit of each value's lifetime, and the bytes in use at each unit."""

    def __init__(
        self,
        units: Sequence[Unit],
        reads_of: Callable[[Unit], Set[fx.Node]],
        stored: Set[fx.Node],
        kept: Set[fx.Node],
        shares: Callable[[fx.Node], bool],
        size_of: Callable[[fx.Node], int],
    ) -> None:
        """`stored`: members of groups that are stored in memory.  `kept`: values that outlive the
        plan, whose memory is not counted.  `shares`: the result of a call may alias arguments.
        """
        self.first: dict[fx.Node, int] = {}
        self.readers: dict[fx.Node, list[int]] = {}
        for place, unit in enumerate(units):
            for node in results_of(unit, stored):
                self.first[node] = place
            for node in reads_of(unit):
                self.readers.setdefault(node, []).append(place)
        end = len(units)
        self.last = {
            node: end if node in kept else self.readers.get(node, [begin])[-1]
            for node, begin in self.first.items()
        }
        for unit in reversed(units):
            if isinstance(unit, fx.Node) and shares(unit):
                for node in reads_of(unit):
                    if node in self.first:
                        self.last[node] = max(self.last[node], self.last[unit])
        spans = (
            (begin, self.last[node], size_of(node))
            for node, begin in self.first.items()
            if node not in kept and not is_held_elsewhere(node)
        )
        self.bytes = profile(end, spans)
        """Bytes in use at each unit."""

    @property
    def most(self) -> int:
        return max(self.bytes, default=0)

    def is_there(self, node: fx.Node, place: int) -> bool:
        """Whether the value is in memory while the unit at `place` runs; inputs always are."""
        return node not in self.first or self.first[node] <= place <= self.last[node]


def results_of(unit: Unit, stored: Set[fx.Node]) -> list[fx.Node]:
    """The values that a unit stores."""
    if isinstance(unit, fx.Node):
        return [unit]
    return [node for node in unit.members if node in stored]


def reads_of(unit: Unit, needs: Mapping[fx.Node, Set[fx.Node]]) -> Set[fx.Node]:
    """The values that a unit reads from memory."""
    if isinstance(unit, fx.Node):
        return needs[unit]
    found: set[fx.Node] = set()
    for item in unit.items:
        found.update(base for base, _ in item.reads)
        found |= item.checked
    return found - unit.members.keys()


def bytes_of(node: fx.Node) -> int:
    """How many bytes a value has, roughly where sizes are symbolic."""
    leaves = trees.leaves(value_or_none(node))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return sum(estimate(product(sizes(each.shape))) * each.dtype.itemsize for each in tensors)


def is_held_elsewhere(node: fx.Node) -> bool:
    """Whether the value has no memory of its own: an item of a tuple, or a constant."""
    return node.op == "get_attr" or node.target is operator.getitem
