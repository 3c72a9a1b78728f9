"""A memory budget: which parts of a graph are recomputed as if they were checkpoints.

The forward nodes are divided into parts where few bytes cross from one to the next.  In a marked
part only the results of products are saved, or nothing at all; the backward graph recomputes the
rest part by part, as it does for the user's own checkpoints (`partition/marks.py`).

The choices of parts to mark do not depend on the budget.  Of those whose predicted peak is within
it, the one of least predicted time is taken, so a larger budget never gives a longer time, and a
smaller one never a larger peak.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Generic, TypeVar

from torch import fx
from torch.utils.flop_counter import flop_registry

from adjoint.errors import DifferentiationError
from adjoint.graph.boundary import location_of_graph, warn_of_fallback
from adjoint.graph.copying import copied
from adjoint.graph.derivative import Derivative, Joint
from adjoint.graph.metadata import (
    CheckpointRegion,
    computes_tensor,
    grad_of,
    outputs_of,
    region_of,
    set_region,
    value_of,
)
from adjoint.graph.origins import origins_of
from adjoint.host_memory import to_host
from adjoint.loops.chain_footprint import ChainFootprint
from adjoint.partition.marks import producer_of
from adjoint.partition.recomputing import is_free
from adjoint.partition.split import Split
from adjoint.rules.costs import seconds_of
from adjoint.target import Rates
from adjoint.torch_private.operators import OpOverload
from adjoint.torch_private.symbols import hint

Made = TypeVar("Made")

# Products in one part, where there are enough of them: about as many as in a layer.
PRODUCTS_PER_PART = 4

MAX_PARTS = 64

# Choices between marking no part and marking all of them.
MARKING_STEPS = 8


@dataclass(frozen=True)
class Choice:
    """Which parts are recomputed.  The first ones, because they are recomputed last, when most
    memory has been freed."""

    parts: int
    """How many parts there are."""
    selective: int = 0
    """How many parts recompute everything except for products."""
    whole: int = 0
    """How many of these recompute products, too."""


@dataclass(frozen=True, eq=False)
class Candidate(Generic[Made]):
    """What a choice makes of a graph."""

    made: Made
    seconds: float
    """The predicted time of the forward and the backward graph."""
    least: int
    """Bytes that are in memory between the two, so that no peak is smaller."""


def choices(joint: Joint) -> list[Choice]:
    """Choices from one that marks nothing to one that recomputes nearly everything."""
    products = sum(map(_is_product, Split(joint).forward_nodes))
    parts = max(2, min(products // PRODUCTS_PER_PART, MAX_PARTS))
    steps = range(1, MARKING_STEPS + 1)
    counts = sorted({math.ceil(parts * step / MARKING_STEPS) for step in steps})
    found = [Choice(parts)]
    found += [Choice(parts, count) for count in counts]
    found += [Choice(parts, parts, count) for count in counts]
    # Coarser parts save fewer values, but hold more of each part.
    while parts > 3:
        parts = parts // 2
        found.append(Choice(parts, parts, parts))
    return found


def quickest_within(
    budget: int,
    candidates: Iterable[Candidate[Made]],
    peak_of: Callable[[Candidate[Made]], int],
) -> tuple[Candidate[Made] | None, int]:
    """The candidate of least time within the budget; and its peak, or the least of all.

    Of several that take as long, the first.  Predicting a peak takes long, so it is not predicted
    for candidates that cannot be within the budget.
    """
    by_time = sorted(candidates, key=lambda each: each.seconds)
    for each in by_time:
        if each.least <= budget and peak_of(each) <= budget:
            return each, peak_of(each)
    return None, min(map(peak_of, by_time))


def within_budget(
    asked: int | float | str,
    joint: Joint,
    make: Callable[..., Derivative],
    footprint: Callable[[Derivative], ChainFootprint | None],
    rates: Rates,
) -> Derivative:
    """The derivative that takes the least time of those within the memory budget."""
    op_by_op = False

    @cache
    def peak_of(candidate: Candidate[Derivative]) -> int:
        nonlocal op_by_op
        pair = footprint(candidate.made)
        op_by_op |= pair is None
        return candidate.least if pair is None else max(candidate.least, pair.peak)

    def candidate(choice: Choice) -> Candidate[Derivative]:
        made = make(marked(joint, choice))
        return Candidate(made, seconds_of_pair(made, rates), _returned(made.runs.graph))

    budget = asked
    if isinstance(budget, float):
        everything = footprint(make(marked(joint, Choice(1)), recomputes=False))
        budget = 0 if everything is None else int(budget * everything.peak)
    assert isinstance(budget, int)
    candidates = [candidate(each) for each in choices(joint)]
    found, peak = quickest_within(budget, candidates, peak_of)
    place = location_of_graph(joint.graph_module)
    if op_by_op:
        message = f"memory_budget has no effect on {place.op}, which runs op by op"
        warn_of_fallback(message, place.source)
        return candidates[0].made
    if found is None:
        raise DifferentiationError(
            f"{place.op} within memory_budget={asked!r}",
            joint.order,
            f"that is {budget:,} bytes, and the least peak that was found has {peak:,}",
            place.source,
            f"allow memory_budget={peak}, or compute with less at a time",
        )
    return found.made


def seconds_of_pair(derivative: Derivative, rates: Rates) -> float:
    """The predicted time of the forward and the first backward graph."""
    graphs = derivative.runs.graph, derivative.first_backward.graph_module.graph
    return sum(seconds_of(each, rates) for each in graphs)


def _returned(graph: fx.Graph) -> int:
    """The bytes that a forward graph computes and returns, results of the program included."""
    returned = {node for node in outputs_of(graph) if isinstance(node, fx.Node)}
    return sum(_bytes(node) for node in returned if node.op == "call_function")


def marked(joint: Joint, choice: Choice) -> Joint:
    """A copy of the joint graph, whose nodes are marked as those of checkpoints."""
    joint = replace(joint, graph_module=copied(joint.graph_module))
    split = Split(joint)
    nodes = split.forward_nodes
    part_of: dict[str, int] = {}
    """By the names that a forward node has, or had before nodes were merged."""
    for node, part in zip(nodes, _parts(nodes, choice.parts), strict=True):
        if part >= choice.selective or region_of(node) is not None:
            continue
        part_of.update(dict.fromkeys((node.name, *(each.name for each in origins_of(node))), part))
        is_saved = part >= choice.whole and _is_product(node)
        set_region(node, CheckpointRegion(-1 - part, "MUST_SAVE" if is_saved else ""))
    for node in split.reverse:
        owner = grad_of(node)
        if owner is not None and owner.node in part_of and region_of(node) is None:
            set_region(node, CheckpointRegion(-1 - part_of[owner.node]))
    return joint


def _parts(nodes: Sequence[fx.Node], count: int) -> list[int]:
    """The part of each node: parts of about as many bytes, divided where few bytes cross."""
    if not nodes:
        return []
    sizes = [_bytes(node) for node in nodes]
    done = list(accumulate(sizes))
    crossing = _crossing(nodes, sizes)
    cuts: list[int] = []
    for number in range(1, count):
        ideal, reach = done[-1] * number / count, done[-1] / (2 * count)
        near = [place for place, total in enumerate(done) if abs(total - ideal) <= reach]
        if near:
            cuts.append(min(near, key=lambda place: (crossing[place], abs(done[place] - ideal))))
    found = {node: bisect_left(sorted(set(cuts)), place) for place, node in enumerate(nodes)}
    # A tuple cannot be saved, so its items are in the part of the operator that returns them.
    return [found[producer_of(node)] for node in nodes]


def _crossing(nodes: Sequence[fx.Node], sizes: Sequence[int]) -> list[int]:
    """For each node, the bytes that it and earlier ones have computed and later ones read."""
    place = {node: index for index, node in enumerate(nodes)}
    last: dict[fx.Node, int] = {}
    for node in reversed(nodes):
        users = [user for user in node.users if user in place]
        # The memory of a view is that of its tensor.
        last[node] = max((last[u] if is_free(u) else place[u] for u in users), default=place[node])
    changes = [0] * (len(nodes) + 1)
    for index, (node, size) in enumerate(zip(nodes, sizes, strict=True)):
        changes[index] += size
        changes[max(last[node], index)] -= size
    return list(accumulate(changes))[: len(nodes)]


def _bytes(node: fx.Node) -> int:
    if is_free(node) or not computes_tensor(node) or node.target is to_host:
        return 0
    value = value_of(node)
    return math.prod(hint(size) for size in value.shape) * int(value.dtype.itemsize)


def _is_product(node: fx.Node) -> bool:
    """Whether the node, or the operator that it is an item of, is a product or a convolution."""
    if node.op == "call_function" and not isinstance(node.target, OpOverload):
        node = node.all_input_nodes[0] if node.all_input_nodes else node
    target = node.target
    return isinstance(target, OpOverload) and target.overloadpacket in flop_registry
