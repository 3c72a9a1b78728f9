"""Values that are computed wherever they are read, and never stored.

Where threads are many, memory is what they wait for: a value that can be computed from no more than
would be read for it is worth neither the store nor the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import fx

from adjoint.lower.definitions import CONSTANTS, Definition, Mapped, Multiplied
from adjoint.lower.index import linear
from adjoint.lower.items import Item, base_of, reading_through, strides_of
from adjoint.lower.sizes import Size, estimate, product, same
from adjoint.lower.views import Where, shape_of, view_of
from adjoint.rules.costs import effort

# What is computed again each time may be so much.
MOST_OPERATORS = 24
MOST_FUNCTIONS = 3

# A product has time to read so many times more, and to compute so much for an element of each of
# its columns' tiles.
FOR_PRODUCTS = 2
MOST_IN_PRODUCTS = 12

# So little is computed again even for many more elements than there are.
A_TRIFLE = 3


def inlined(items: Mapping[fx.Node, Item]) -> dict[fx.Node, Item]:
    """The items, given in order, without those that are computed where they are read."""
    left: dict[fx.Node, Item] = {}
    chosen: dict[fx.Node, Definition] = {}
    indices = {base_of(bound.node) for item in items.values() for bound in item.bounds}
    for node, item in items.items():
        made = reading_through(item, chosen)
        assert made is not None, "what is chosen can be read through"
        if node not in indices and _is_worth_it(made, items):
            chosen[node] = made.definition
        else:
            left[node] = made
    return left


def _is_worth_it(item: Item, items: Mapping[fx.Node, Item]) -> bool:
    node, definition = item.node, item.definition
    if not isinstance(definition, Mapped) or node.target in CONSTANTS:
        return False
    if not _is_read_by_items_alone(node, items):
        return False
    if _is_too_much(item):
        return False
    cost = effort(len(item.applied), item.functions)
    if not all(_has_time(items[reader], node, item, cost) for reader in _readers(node)):
        return False
    if not _is_trifle(item) and not _is_read_once_an_element(node, item.count, items):
        return False
    most = bytes_for(node, item.count) * (FOR_PRODUCTS if _is_for_products(node, items) else 1)
    return bytes_read(item) <= most


def is_quick(item: Item, reader: Item) -> bool:
    """It may be computed again by that reader, wherever it is read."""
    return not _is_too_much(item) and (same(reader.count, item.count) or _is_trifle(item))


def _is_trifle(item: Item) -> bool:
    return len(item.applied) <= A_TRIFLE and not item.functions


def _is_too_much(item: Item) -> bool:
    return len(item.applied) > MOST_OPERATORS or item.functions > MOST_FUNCTIONS


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a value, through views as well."""
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
        same(items[reader].count, count) or isinstance(items[reader].definition, Multiplied)
        for reader in _readers(node)
    )


def _has_time(reader: Item, node: fx.Node, item: Item, cost: int) -> bool:
    """A product computes what it multiplies for each tile of columns, with few threads."""
    if not isinstance(reader.definition, Multiplied):
        return True
    left, right = reader.node.args[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    columns = reader.domain[1]
    assert isinstance(columns, int)
    tiles = -(-columns // reader.definition.tile.columns)
    is_left = base_of(left) is node and base_of(right) is not node
    return is_left and not item.gathers and cost * tiles <= MOST_IN_PRODUCTS


def _is_for_products(node: fx.Node, items: Mapping[fx.Node, Item]) -> bool:
    return all(isinstance(items[n].definition, Multiplied) for n in _readers(node))


def bytes_for(node: fx.Node, count: Size) -> int:
    """What a pass through so many elements of a tensor takes from memory."""
    size: int = node.meta["val"].dtype.itemsize
    return min(estimate(count), estimate(product(shape_of(node)))) * size


def bytes_read(item: Item) -> float:
    """What computing all elements takes from memory; too much, where neighbours lie apart."""
    taken = 0
    for base, index in dict.fromkeys(item.reads):
        if not is_small(base, item.count):
            if not lies_along(item, base, index):
                return math.inf
            taken += bytes_for(base, item.count)
    return taken


def lies_along(item: Item, base: fx.Node, index: Where) -> bool:
    if not item.order:
        return True
    fastest = item.axes[item.order[-1]]
    step = linear(index, strides_of(base)).coefficient(fastest)
    return isinstance(step, int) and step <= 1


def is_small(base: fx.Node, count: Size) -> bool:
    """It is read again and again, and so from a cache."""
    return estimate(product(shape_of(base))) * 8 <= estimate(count)
