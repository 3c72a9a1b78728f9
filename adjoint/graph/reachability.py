"""Which nodes of a graph can be reached from others, along users or along arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx


def reachable(
    start: Iterable[fx.Node], neighbours: Callable[[fx.Node], Iterable[fx.Node]]
) -> set[fx.Node]:
    """The nodes of `start`, their `neighbours`, the neighbours of these, and so on."""
    found: set[fx.Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += neighbours(node)
    return found


def dependents(start: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes of `start`, and all nodes that are computed from them."""
    return reachable(start, lambda node: node.users)
