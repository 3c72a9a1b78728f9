"""Which value a node computes, through copies, derivatives, splits and rewrites.

Each value has an *origin*: the node that first computed it.  Copies of a node have its origin,
since they compute the same value.  A pass that merges two nodes, or puts a new node in the place of
an old one, gives what is left the origins of both.  So a value of one graph is found in any graph
that was made of it, whichever passes ran in between, and no stage hands tables of nodes to another.

An intermediate node that a pass makes, such as the row maximum of a softmax, has an origin of its
own, and is `part_of` the operator that the pass rewrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from adjoint.graph.leaves import detached
from adjoint.torch_private import trees

_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Origin:
    """A value, by the name of the node that first computed it and a number of its own."""

    name: str
    number: int

    def __str__(self) -> str:
        return self.name


def next_number() -> int:
    """A number that no origin of this process has."""
    return next(_NUMBERS)


def begin(node: fx.Node) -> None:
    """Give `node` an origin of its own."""
    node.meta["origin"] = (Origin(node.name, next_number()),)


def has_origin(node: fx.Node) -> bool:
    return "origin" in node.meta


def origins_of(node: fx.Node) -> tuple[Origin, ...]:
    """The values that `node` computes, which are all equal; the oldest comes first."""
    if "origin" not in node.meta:
        begin(node)
    return cast("tuple[Origin, ...]", node.meta["origin"])


def inherit(node: fx.Node, other: fx.Node) -> None:
    """Add the origins of `other` to those of `node`, which computes the same value."""
    merged = dict.fromkeys((*origins_of(other), *origins_of(node)))
    node.meta["origin"] = tuple(sorted(merged, key=lambda each: each.number))


def replace(node: fx.Node, new: fx.Node) -> None:
    """Put `new`, which computes the same value, in the place of `node`."""
    inherit(new, node)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def for_part_of(node: fx.Node, value: object) -> dict[str, object]:
    """Metadata for a node that a rewrite of `node` makes; `value` is its fake value.

    It belongs to the same line, mode and derivative.  It is another value, and so has a fake value
    of its own.
    """
    with torch.no_grad():
        own = trees.map_leaves(detached, value)
    meta = {key: each for key, each in node.meta.items() if key != "origin"}
    meta.setdefault("part_of", node.target)
    return {**meta, "val": own}


def is_part(node: fx.Node) -> bool:
    """Whether a rewrite made the node as an intermediate step towards another value."""
    return "part_of" in node.meta


def have(nodes: Iterable[fx.Node], origins: Collection[Origin]) -> list[fx.Node]:
    """Those of `nodes` that compute one of these values."""
    wanted = set(origins)
    return [node for node in nodes if not wanted.isdisjoint(origins_of(node))]
