"""Minimum cut of a network by maximum flow (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)

# The capacity of an edge that no minimum cut may contain.
UNBOUNDED = 1 << 62


class Network(Generic[Vertex]):
    """A directed graph whose edges have capacities."""

    def __init__(self) -> None:
        self._numbers: dict[Vertex, int] = {}
        self._edges: list[list[int]] = []
        self._heads: list[int] = []
        self._room: list[int] = []

    def _number(self, vertex: Vertex) -> int:
        if vertex not in self._numbers:
            self._numbers[vertex] = len(self._edges)
            self._edges.append([])
        return self._numbers[vertex]

    def add(self, tail: Vertex, head: Vertex, capacity: int) -> None:
        """Add an edge: number `2k`, with its residual edge `2k + 1` in the other direction."""
        start, end = self._number(tail), self._number(head)
        self._edges[start].append(len(self._heads))
        self._heads.append(end)
        self._room.append(capacity)
        self._edges[end].append(len(self._heads))
        self._heads.append(start)
        self._room.append(0)

    def reachable_without(self, source: Vertex, sink: Vertex) -> set[Vertex]:
        """The source's side of a minimum cut; of several such cuts, the one nearest to the sink."""
        start, end = self._number(source), self._number(sink)
        while True:
            levels = self._levels(start)
            if levels[end] < 0:
                break
            used = [0] * len(self._edges)
            while self._augment(start, end, levels, used):
                pass
        leads_to_sink = self._leading_to(end)
        return {v for v, number in self._numbers.items() if number not in leads_to_sink}

    def _levels(self, start: int) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[start] = 0
        queue = deque([start])
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._room[edge] > 0 and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    queue.append(head)
        return levels

    def _augment(self, start: int, end: int, levels: list[int], used: list[int]) -> bool:
        """Push flow along one path of the level graph; False if there is none left."""
        path: list[int] = []
        vertex = start
        while vertex != end:
            edges = self._edges[vertex]
            while used[vertex] < len(edges):
                edge = edges[used[vertex]]
                head = self._heads[edge]
                if self._room[edge] > 0 and levels[head] == levels[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    break
                used[vertex] += 1
            else:
                if not path:
                    return False
                edge = path.pop()
                vertex = self._heads[edge ^ 1]
                used[vertex] += 1
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return True

    def _leading_to(self, end: int) -> set[int]:
        found = {end}
        queue = deque([end])
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                # The residual edge leads from `tail` to `vertex`.
                tail = self._heads[edge]
                if self._room[edge ^ 1] > 0 and tail not in found:
                    found.add(tail)
                    queue.append(tail)
        return found
