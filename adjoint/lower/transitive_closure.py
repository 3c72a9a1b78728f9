"""The transitive closure of dependencies, updated as dependencies are added."""

from __future__ import annotations

from collections.abc import Hashable


class TransitiveClosure:
    """For each unit, the set of itself and all that it depends on, as the bits of an integer."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._rows: list[int] = []

    def __contains__(self, unit: Hashable) -> bool:
        return unit in self._places

    def bit(self, unit: Hashable) -> int:
        """The set of `unit` alone; empty if it was never added."""
        return 1 << self._places[unit] if unit in self._places else 0

    def row(self, unit: Hashable) -> int:
        """The set of `unit` and all that it depends on."""
        return self._rows[self._places[unit]]

    def add(self, unit: Hashable, needed: int) -> None:
        """`unit`, and everything that depends on it, depends on the set `needed`."""
        place = self._places.setdefault(unit, len(self._places))
        if place == len(self._rows):
            self._rows.append(1 << place)
        if not needed & ~self._rows[place]:
            return
        needed |= self._rows[place]
        for other, row in enumerate(self._rows):
            if row >> place & 1:
                self._rows[other] = row | needed
