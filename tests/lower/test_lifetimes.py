from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor, fx

from adjoint.lower.definitions import definition_of
from adjoint.lower.groups import Group, Level
from adjoint.lower.items import item_of
from adjoint.lower.lifetimes import Lifetimes, bytes_of, reads_of, results_of
from tests.lower.test_row_tiles import with_any_rows
from tests.lowering import graph_of

X = torch.zeros(4, 8)
BYTES = 4 * 8 * 4


def nodes_of(function: Callable[..., Any]) -> list[fx.Node]:
    """What a program of one input calls, in order."""
    return [node for node in graph_of(function, [X]).graph.nodes if node.op == "call_function"]


def lives(
    units: list[fx.Node],
    kept: Set[fx.Node] = frozenset(),
    shares: Callable[[fx.Node], bool] = lambda node: False,
) -> Lifetimes:
    needs = {node: set(node.all_input_nodes) for node in units}
    return Lifetimes(units, lambda unit: reads_of(unit, needs), set(), kept, shares, bytes_of)


def chain(x: Tensor) -> Tensor:
    one = x.exp()
    two = one.sin()
    three = two.cos()
    return one + three


def test_a_value_is_there_until_it_is_last_read() -> None:
    one, two, three, total = units = nodes_of(chain)
    found = lives(units)
    assert [(found.first[each], found.last[each]) for each in units] == [
        (0, 3),
        (1, 2),
        (2, 3),
        (3, 3),
    ]
    assert found.bytes == [BYTES, 2 * BYTES, 3 * BYTES, 3 * BYTES]
    assert found.most == 3 * BYTES
    assert found.readers[one] == [1, 3]
    assert found.is_there(two, 2)
    assert not found.is_there(two, 3)
    assert not found.is_there(three, 1)
    (x,) = one.all_input_nodes
    assert found.is_there(x, 3), "what the caller gave"
    assert total not in found.readers


def test_what_is_kept_is_there_to_the_end_and_is_not_counted() -> None:
    one, *_ = units = nodes_of(chain)
    found = lives(units, kept={one})
    assert found.is_there(one, 4)
    assert found.bytes == [0, BYTES, 2 * BYTES, 2 * BYTES]


def test_what_shares_memory_lives_as_long() -> None:
    units = nodes_of(lambda x: (x.exp().view(-1) + 1).sin().sum())
    first, view, *_ = units
    assert lives(units).last[first] == 1
    assert lives(units, shares=lambda node: node is view).last[first] == 2


def test_parts_of_a_value_take_no_memory_of_their_own() -> None:
    units = [node for node in nodes_of(lambda x: x.sort(1)[0].exp()) if node.users]
    assert [unit.name for unit in units] == ["sort", "getitem", "exp"]
    # Values and places of eight bytes.
    assert bytes_of(units[0]) == 3 * BYTES
    assert lives(units).bytes == [3 * BYTES, 3 * BYTES, BYTES]


def test_what_a_group_reads_and_leaves() -> None:
    x_exp, total = nodes_of(lambda x: x.exp() + x)
    group = Group((4, 8))
    for node in (x_exp, total):
        definition = definition_of(node)
        assert definition is not None
        group.members[node] = (item_of(node, definition), Level.FULL)
    assert reads_of(group, {}) == set(x_exp.all_input_nodes)
    assert results_of(group, {total}) == [total]
    assert results_of(x_exp, set()) == [x_exp]


def test_what_is_unknown_counts_as_something() -> None:
    module = with_any_rows(lambda x: x.exp(), [X], 4)
    (node,) = (node for node in module.graph.nodes if node.name == "exp")
    assert bytes_of(node) > 8 * 4
