"""Inlining: values that are computed wherever they are read, and never stored.

On a memory-bound target a value is not worth its store and its loads if it can be computed from no
more bytes than it has itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import fx

from adjoint.lower.definitions import CONSTANTS, Definition, Mapped, Multiplied
from adjoint.lower.index import linear
from adjoint.lower.items import Item, base_of, strides_of, with_inlined
from adjoint.lower.sizes import Size, estimate, product
from adjoint.lower.views import MultiIndex, dtype_of, shape_of, view_of
from adjoint.rules.costs import effort
from adjoint.torch_private.symbols import same_number

# The most operators of an inlined value, and the most costly functions among them.
MAX_INLINED_OPERATORS = 24
MAX_INLINED_FUNCTIONS = 3

# The left operand of a product may read this many times its own bytes, and compute this many
# operators for each element and each tile of columns.
PRODUCT_READ_FACTOR = 2
MAX_PRODUCT_OPERATORS = 12

# A value of at most this many operators is inlined even where it is read many times.
MAX_TRIVIAL_OPERATORS = 3


def inlined(items: Mapping[fx.Node, Item]) -> dict[fx.Node, Item]:
    """The items, given in order, without those that are inlined where they are read."""
    remaining: dict[fx.Node, Item] = {}
    chosen: dict[fx.Node, Definition] = {}
    indices = {base_of(bound.node) for item in items.values() for bound in item.bounds}
    for node, item in items.items():
        candidate = with_inlined(item, chosen)
        assert candidate is not None, "elementwise definitions can be inlined"
        if node not in indices and _is_worth_it(candidate, items):
            chosen[node] = candidate.definition
        else:
            remaining[node] = candidate
    return remaining


def _is_worth_it(item: Item, items: Mapping[fx.Node, Item]) -> bool:
    node, definition = item.node, item.definition
    if not isinstance(definition, Mapped) or node.target in CONSTANTS:
        return False
    if not _is_read_by_items_alone(node, items):
        return False
    if _is_costly(item):
        return False
    cost = effort(len(item.applied), item.functions)
    if not all(_may_compute(items[reader], node, item, cost) for reader in _readers(node)):
        return False
    if not _is_trivial(item) and not _is_read_once_an_element(node, item.count, items):
        return False
    factor = PRODUCT_READ_FACTOR if _is_read_by_products_alone(node, items) else 1
    return bytes_read(item) <= bytes_for(node, item.count) * factor


def is_quick(item: Item, reader: Item) -> bool:
    """Whether the reader may recompute the item for each element that it reads."""
    return not _is_costly(item) and (same_number(reader.count, item.count) or _is_trivial(item))


def _is_trivial(item: Item) -> bool:
    return len(item.applied) <= MAX_TRIVIAL_OPERATORS and not item.functions


def _is_costly(item: Item) -> bool:
    return len(item.applied) > MAX_INLINED_OPERATORS or item.functions > MAX_INLINED_FUNCTIONS


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read a value, directly or through views."""
    for user in node.users:
        if view_of(user) is None:
            yield user
        else:
            yield from _readers(user)


def _is_read_by_items_alone(node: fx.Node, items: Mapping[fx.Node, Item]) -> bool:
    found = list(_readers(node))
    return bool(found) and all(reader in items for reader in found)


def _is_read_once_an_element(node: fx.Node, count: Size, items: Mapping[fx.Node, Item]) -> bool:
    return all(
        same_number(items[reader].count, count) or isinstance(items[reader].definition, Multiplied)
        for reader in _readers(node)
    )


def _may_compute(reader: Item, node: fx.Node, item: Item, cost: int) -> bool:
    """Whether the reader may compute the item.

    A product computes its left operand once for each tile of columns, with few threads.
    """
    if not isinstance(reader.definition, Multiplied):
        return True
    left, right = reader.node.args[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    columns = reader.domain[1]
    assert isinstance(columns, int)
    tiles = -(-columns // reader.definition.tile.columns)
    is_left = base_of(left) is node and base_of(right) is not node
    return is_left and not item.gathers and cost * tiles <= MAX_PRODUCT_OPERATORS


def _is_read_by_products_alone(node: fx.Node, items: Mapping[fx.Node, Item]) -> bool:
    return all(isinstance(items[n].definition, Multiplied) for n in _readers(node))


def bytes_for(node: fx.Node, count: Size) -> int:
    """The memory traffic of reading `count` elements of a tensor."""
    return min(estimate(count), estimate(product(shape_of(node)))) * dtype_of(node).itemsize


def bytes_read(item: Item) -> float:
    """The memory traffic of computing all elements; infinite where loads are not coalesced."""
    traffic = 0
    for base, index in dict.fromkeys(item.reads):
        if not is_small(base, item.count):
            if not is_coalesced(item, base, index):
                return math.inf
            traffic += bytes_for(base, item.count)
    return traffic


def is_coalesced(item: Item, base: fx.Node, index: MultiIndex) -> bool:
    """Whether adjacent iterations read adjacent elements, or the same."""
    if not item.order:
        return True
    fastest = item.axes[item.order[-1]]
    step = linear(index, strides_of(base)).coefficient(fastest)
    return isinstance(step, int) and step <= 1


def is_small(base: fx.Node, count: Size) -> bool:
    """Whether a tensor has far fewer elements than iterations: most reads hit the cache."""
    return estimate(product(shape_of(base))) * 8 <= estimate(count)
