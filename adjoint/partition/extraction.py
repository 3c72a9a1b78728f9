"""Extracting from a joint graph the nodes between given inputs and outputs, in a given order."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set

from torch import fx

from adjoint.graph.copying import GraphCopy
from adjoint.graph.purity import is_impure, remove_dead_code
from adjoint.graph.reachability import reachable


class NotSaved(Exception):
    """The backward graph cannot be computed from what the forward graph saved."""


def descendants(graph: fx.Graph, roots: Iterable[fx.Node]) -> set[fx.Node]:
    found = set(roots)
    for node in graph.nodes:
        if node.op != "output" and any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def used_values(
    joint: fx.GraphModule,
    available: Container[fx.Node],
    tangents: Sequence[fx.Node],
    outputs: Sequence[object],
    drawn: Set[fx.Node],
) -> list[fx.Node]:
    """The available values that `outputs` are computed from, if everything else is recomputed.

    `drawn`: random draws that belong to the backward graph, and so are not repeated by it.
    """

    def is_available(node: fx.Node) -> bool:
        if node in available:
            return True
        if node.op == "placeholder" or (is_impure(node) and node not in drawn):
            raise NotSaved(f"{node.name} is needed by a backward graph, but not saved")
        return False

    used = _first((n for n in outputs if isinstance(n, fx.Node)), is_available, set(tangents))
    order = {node: i for i, node in enumerate(joint.graph.nodes)}
    return sorted(used, key=order.__getitem__)


def first_reached(
    ends: Iterable[fx.Node], saved: Container[fx.Node], reverse: Container[fx.Node]
) -> dict[fx.Node, None]:
    """The `saved` values that `ends` are computed from, with no other saved value in between.

    Those of `ends` that are nodes of `reverse` do not count.
    """
    return _first((node for node in ends if node not in reverse), saved.__contains__, set())


def _first(
    ends: Iterable[fx.Node], is_wanted: Callable[[fx.Node], bool], visited: set[fx.Node]
) -> dict[fx.Node, None]:
    """Going back from `ends`, the first nodes that are wanted; `visited` are passed over."""
    found: dict[fx.Node, None] = {}
    work = list(ends)
    while work:
        node = work.pop()
        if node in visited:
            continue
        visited.add(node)
        if is_wanted(node):
            found[node] = None
        else:
            work += node.all_input_nodes
    return found


def extract(
    module: fx.GraphModule,
    inputs: Sequence[fx.Node],
    outputs: Sequence[object],
    kept: Sequence[fx.Node] = (),
    late: Set[fx.Node] | None = None,
) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
    """The graph that computes `outputs` from `inputs` and runs `kept`; and the copy of each node.

    With `late`, each node outside of `late` is placed right before the first node of `late` that
    needs it, so that a recomputed value is not held in memory longer than necessary.
    """
    copy = GraphCopy(module)
    for node in inputs:
        copy.add_input(node)
    needed = _needed(inputs, [*outputs, *kept])
    ordered = [n for n in module.graph.nodes if n in needed]
    for node in ordered if late is None else _put_off(ordered, late):
        copy.add(node)
    copy.returns(outputs)
    extracted = copy.finish()
    # Only after `finish`: whether a node is dead depends on the bodies that the module holds.
    remove_dead_code(extracted.graph)
    return extracted, copy.copies


def _put_off(nodes: Sequence[fx.Node], late: Set[fx.Node]) -> Iterator[fx.Node]:
    """`nodes`, reordered: those of `late` in their order, others right before their first user."""
    waiting = set(nodes)
    anchors = [n for n in nodes if n in late or is_impure(n)]
    for anchor in [*anchors, *nodes]:
        stack = [anchor]
        while stack:
            node = stack[-1]
            missing = [n for n in node.all_input_nodes if n in waiting] if node in waiting else []
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if node in waiting:
                waiting.remove(node)
                yield node


def _needed(inputs: Sequence[fx.Node], outputs: Sequence[object]) -> set[fx.Node]:
    """The nodes that `outputs` are computed by from `inputs`."""
    stop = set(inputs)
    ends = [each for each in outputs if isinstance(each, fx.Node)]
    return reachable(ends, lambda node: () if node in stop else node.all_input_nodes) - stop
