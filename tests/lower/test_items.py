from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adjoint.lower.definitions import definition_of
from adjoint.lower.items import Item, item_of, iteration_order, resolve, with_inlined
from tests.lowering import graph_of


def items(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Item]:
    nodes = [n for n in graph_of(function, inputs).graph.nodes if n.op == "call_function"]
    found = [(node, definition_of(node)) for node in nodes]
    return [item_of(node, made) for node, made in found if made is not None]


def test_dimensions_are_taken_in_the_order_of_memory() -> None:
    assert iteration_order((2, 3, 4), (12, 4, 1)) == (0, 1, 2)
    assert iteration_order((2, 3, 4), (1, 8, 2)) == (1, 2, 0)
    assert iteration_order((2, 1, 4), (4, 99, 1)) == (0, 2)
    assert iteration_order((2, 3), (0, 1)) == (0, 1)


def test_what_is_read_is_resolved_through_views() -> None:
    (item,) = items(lambda x: x.t()[1:] + 1, torch.ones(3, 4))
    ((base, index),) = item.reads
    assert base.op == "placeholder"
    first, second = item.axes
    assert [list(each.axes()) for each in index] == [[second], [first]]
    assert index[1].constant == 1


def test_a_view_resolves_to_its_base() -> None:
    graph = graph_of(lambda x: x.t() + 1, [torch.ones(3, 4)]).graph
    x, turned, _, _ = graph.nodes
    (item,) = items(lambda x: x + 1, torch.ones(4, 3))
    base, index = resolve(turned, item.index)
    assert base is x
    assert index == tuple(reversed(item.index))


def test_a_sum_of_neighbours_leaves_rows() -> None:
    rows, columns = items(lambda x: [x.sum(1), x.sum(0)], torch.ones(3, 4))
    assert rows.reduces_rows
    assert not columns.reduces_rows
    assert (rows.columns, columns.columns) == (4, 3)
    assert rows.is_reduction
    turned, _ = items(lambda x: [x.sum(1), x.sum(0)], torch.ones(4, 3).t())
    assert not turned.reduces_rows


def test_which_items_take_long() -> None:
    cheap, dear = items(lambda x: [x + 1, x.exp()], torch.ones(3))
    assert not cheap.has_math
    assert dear.has_math


def test_a_scatter_whose_neighbours_may_meet_is_serial() -> None:
    place = torch.zeros(3, dtype=torch.int64)
    (along,) = items(lambda x, i: x.index_add(0, i, x), torch.ones(3), place)
    (across,) = items(lambda x, i: x.index_add(0, i, x), torch.ones(3, 4), place)
    assert along.serial
    assert not across.serial


def test_an_item_may_compute_what_it_reads_on_the_spot() -> None:
    x = torch.ones(3, 4)
    doubled, moved = items(lambda x: (x * 2)[1:] + 1, x)
    through = with_inlined(moved, {doubled.node: doubled.definition})
    assert through is not None
    ((base, index),) = through.reads
    assert base.op == "placeholder"
    assert index[0].constant == 1
    assert through.domain == moved.domain
    assert with_inlined(moved, {moved.node: moved.definition}) is moved, "it reads no such"


def test_sums_are_not_computed_on_the_spot() -> None:
    total, less = items(lambda x: x - x.sum(1, keepdim=True), torch.ones(3, 4))
    assert with_inlined(less, {total.node: total.definition}) is None


def test_what_is_checked_for_a_read_is_checked_for_who_reads_through_it() -> None:
    picked, more = items(lambda x, i: x[i] + 1, torch.ones(3, 4), torch.arange(2))
    made = with_inlined(more, {picked.node: picked.definition})
    assert made is not None
    assert made.bounds == picked.bounds != ()


def test_a_sum_comes_in_the_order_of_what_is_summed() -> None:
    x = torch.empty(3, 6, 2, 5)
    nodes = graph_of(lambda x: (x.permute(0, 2, 3, 1) * 2).sum(1), [x]).graph.nodes
    (summed,) = (node for node in nodes if node.target is torch.ops.aten.sum.dim_IntList)
    definition = definition_of(summed)
    assert definition is not None
    item = item_of(summed, definition)
    assert item.order == (0, 3, 2, 1)
    first, second, third = (item.index[dim] for dim in (0, 2, 3))
    assert item.position((first, second, third)) == first * 30 + third * 5 + second


def test_kernels_read_a_view_that_repeats_elements_as_it_lies() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).as_strided((2, 2, 3), (0, 2, 1)) * 3

    x = torch.arange(6.0)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(program, backend="adjoint")(x), program(x))
