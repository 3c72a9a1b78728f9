from __future__ import annotations

import pytest
import torch

from adjoint.lower.definitions import definition_of
from adjoint.lower.groups import Group, Level, enter, equal
from adjoint.lower.items import Item, item_of
from tests.lower.test_fusion import X, kernels
from tests.lowering import check, graph_of


def items(function: object, *inputs: torch.Tensor) -> list[Item]:
    """The items of all calls of a program."""
    graph = graph_of(function, inputs).graph  # type: ignore[arg-type]
    found: list[Item] = []
    for node in graph.nodes:
        definition = definition_of(node)
        if definition is not None:
            found.append(item_of(node, definition))
    return found


def grouped(given: list[Item], on_grid: bool = False) -> list[Level | None]:
    """The level at which a group computes each item, in order."""
    group = Group(given[0].shape)
    levels: list[Level | None] = []
    for item in given:
        level = enter(item, group, on_grid)
        if level is not None:
            group.members[item.node] = (item, level)
        levels.append(level)
    return levels


def test_levels() -> None:
    found = items(lambda x: [(s := (x + 1).sum(1)), s * 2, x.exp().sum(0)], torch.ones(6, 8))
    full, row, after = Level.FULL, Level.ROW, Level.AFTER
    assert grouped(found) == [full, row, row, full, after]


def test_what_is_complete_only_after_the_group_is_not_read_in_it() -> None:
    assert grouped(items(lambda x: x - x.sum(0), torch.ones(6, 8))) == [Level.AFTER, None]


def test_sums_over_rows_may_have_to_have_as_many_results() -> None:
    given = items(lambda x: [x.sum(0), x.sum()], torch.ones(6, 8))
    assert grouped(given) == [Level.AFTER, Level.AFTER]
    assert grouped(given, on_grid=True) == [Level.AFTER, None]


def test_on_a_grid_sums_over_rows_with_many_results_are_not_fused_with_sums_of_rows() -> None:
    """As the gradient of a bias of attention scores: all rows of one sample are its results."""
    given = items(lambda x: [x.sum(-1), x.sum(0)], torch.ones(6, 16, 8))
    assert grouped(given) == [Level.ROW, Level.AFTER]
    assert grouped(given, on_grid=True) == [Level.ROW, None]
    assert grouped(given[::-1], on_grid=True) == [Level.AFTER, None]
    few = items(lambda x: [x.sum(-1), x.sum(0)], torch.ones(6, 2, 8))
    assert grouped(few, on_grid=True) == [Level.ROW, Level.AFTER]


def test_indices_are_equal_term_by_term() -> None:
    (item,) = items(lambda x: x + 1, torch.ones(6, 8))
    row, column = item.index
    assert equal(row * 2 + column, column + row + row)
    assert not equal(row + column, row + column + 1)
    assert not equal(row, column)


def test_two_reductions_along_different_dimensions() -> None:
    assert kernels(lambda x: [x.sum(0), x.sum(1)], X) == 1


def test_rows_of_different_lengths_are_apart() -> None:
    function = lambda x: [x.sum(1), x.reshape(12, 4).sum(1)]  # noqa: E731
    assert kernels(function, X) == 2


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("size", [4, 6])
def test_sums_that_run_in_other_orders_than_their_results_lie(size: int, keepdim: bool) -> None:
    """Two axes change places in memory: rows of the one sum are not those of the other."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        turned = x.view(3, size, 2, 6).permute(0, 2, 3, 1) * 2
        straight = y.view(3, 2, 6, size) * 3
        return turned.sum(1, keepdim=keepdim) + straight.sum(1, keepdim=keepdim)

    numbers = torch.arange(3.0 * size * 12, dtype=torch.float64)
    check(function, numbers.view(3, size, 12), numbers.flip(0).view(3, 12, size))
