"""Writes that touch one place of memory more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.trace.geometry import covers
from adjoint.trace.overlap import is_read_before_written, partially_overlap
from adjoint.trace.views import has_internal_overlap
from tests.parity import ROUTES, Route, Row, Table, check, grown, plain, refused

REPEATED: list[tuple[str, Callable[[Tensor], Tensor], bool]] = [
    ("a row", lambda x: x[0], False),
    ("a transpose", lambda x: x.t(), False),
    ("every other", lambda x: x[:, ::2], False),
    ("expanded", lambda x: x[:1].expand(3, 4), True),
    ("expanded to itself", lambda x: x.expand(4, 4), False),
    ("windows", lambda x: x.view(-1).unfold(0, 3, 1), True),
    ("windows side by side", lambda x: x.view(-1).unfold(0, 3, 3), False),
    ("nothing", lambda x: x[:0].expand(0, 4), False),
]


@pytest.mark.parametrize(
    ("view", "repeats"), [pytest.param(view, does, id=name) for name, view, does in REPEATED]
)
def test_elements_in_one_place(view: Callable[[Tensor], Tensor], repeats: bool) -> None:
    assert has_internal_overlap(view(torch.zeros(4, 4))) is repeats


PAIRS: list[tuple[str, Callable[[Tensor], tuple[Tensor, Tensor]], bool]] = [
    ("the same", lambda x: (x, x.view_as(x)), False),
    ("two rows", lambda x: (x[0], x[1]), False),
    ("a row and a column", lambda x: (x[0], x[:, 1]), True),
    ("even and odd", lambda x: (x[:, ::2], x[:, 1::2]), False),
    ("halves", lambda x: (x[:, :2], x[:, 2:]), False),
    ("shifted", lambda x: (x[:3], x[1:]), True),
    ("transposed", lambda x: (x, x.t()), True),
    ("other memory", lambda x: (x, x.clone()), False),
    ("other dtype", lambda x: (x[0], x.view(torch.int32)[0, 2:]), True),
    ("nothing", lambda x: (x, x[:0]), False),
]


@pytest.mark.parametrize(
    ("pair", "overlaps"), [pytest.param(pair, does, id=name) for name, pair, does in PAIRS]
)
def test_tensors_that_overlap(
    pair: Callable[[Tensor], tuple[Tensor, Tensor]], overlaps: bool
) -> None:
    one, other = pair(torch.zeros(4, 4, dtype=torch.float64))
    assert partially_overlap(one, other) is overlaps
    assert partially_overlap(other, one) is overlaps


ORDERED: list[tuple[str, Callable[[Tensor], tuple[Tensor, Tensor]], bool]] = [
    ("to the left", lambda x: (x[:, :-1], x[:, 1:]), True),
    ("to the right", lambda x: (x[:, 1:], x[:, :-1]), False),
    ("to the left, transposed", lambda x: (x[:, :-1].t(), x[:, 1:].t()), True),
    ("upwards in columns", lambda x: (x[:-1, 1:], x[1:, 1:]), True),
    ("downwards in columns", lambda x: (x[1:, 1:], x[:-1, 1:]), False),
    ("the last of a row", lambda x: (x[:, :2], x[:, 1:2]), True),
    ("the first of a row", lambda x: (x[:, :2], x[:, :1]), False),
    ("the first element", lambda x: (x[:, :2], x[0, 0]), False),
    ("the first row", lambda x: (x[:, 1:], x[0, 1:]), False),
    ("the last row", lambda x: (x[:, 1:], x[3, 1:]), True),
    ("a column", lambda x: (x[0, :4], x[:, 1]), True),
    ("dense", lambda x: (x[:3], x[1:]), False),
]


@pytest.mark.parametrize(
    ("pair", "before"), [pytest.param(pair, does, id=name) for name, pair, does in ORDERED]
)
def test_elements_that_are_read_before_they_are_written(
    pair: Callable[[Tensor], tuple[Tensor, Tensor]], before: bool
) -> None:
    x = torch.arange(16.0).view(4, 4)
    written, read = pair(x)
    assert is_read_before_written(written, read) is before
    if before:
        expected = read.expand(written.shape).clone()
        assert torch.equal(written.copy_(read), expected)


def test_covers() -> None:
    x = torch.zeros(4, 4)
    assert covers(x, x[1:, ::2])
    assert covers(x[::2], x[2])
    assert not covers(x[::2], x[1])
    assert not covers(x[1:], x)
    assert covers(x[1:], x[:0])


table = Table()


@table(lambda: plain(4, 4))
def even_and_odd(x: Tensor) -> Tensor:
    x[:, ::2].add_(x[:, 1::2])
    return x * 1


@table(lambda: plain(4, 4))
def to_itself(x: Tensor) -> Tensor:
    x.add_(x).mul_(x.view_as(x))
    return x * 1


@table(lambda: grown(4, 4))
def columns_to_the_left(x: Tensor) -> Tensor:
    x[:, :-1] = x[:, 1:]
    return x * 1


@table(lambda: plain(4, 6))
def times_what_lies_behind(x: Tensor) -> Tensor:
    return x[:, :2].mul_(x[:, 1:3]).addcmul_(x[:, 1:3], x[:, 2:4]) * 1


@table(lambda: plain(4, 4))
def by_its_own_last_column(x: Tensor) -> Tensor:
    x[:, :3].add_(x[:, 2:3])
    return x * 1


@table(lambda: plain(3, 4, 4))
def to_the_left_in_a_transpose(x: Tensor) -> Tensor:
    y = x.transpose(0, 2)
    y[:3, 1:].copy_(y[1:, 1:])
    return x * 1


@table(lambda: plain(300, 300))
def a_history_is_shifted(x: Tensor) -> Tensor:
    x[:, :-1] = x[:, 1:]
    x[:, -1] = x.sum(1)
    return x.cos()


@table(lambda: plain(1, 3))
def one_row_of_an_expanded(x: Tensor) -> Tensor:
    y = x.expand(4, 3)
    y[2].add_(1)
    y[1, 0] = 5
    return y * 1


@table(lambda: plain(6))
def one_of_several_windows(x: Tensor) -> tuple[Tensor, Tensor]:
    windows = x.unfold(0, 3, 1)
    windows[1].mul_(2)
    windows[2, 0].add_(1)
    return windows * 1, x.sum()


@table(lambda: grown(6))
def one_of_several_windows_with_a_derivative(x: Tensor) -> Tensor:
    y = x * 1
    y.unfold(0, 3, 1)[1].mul_(x[:3])
    return y * y


@table(lambda: plain(1, 3))
def fill_an_expanded(x: Tensor) -> Tensor:
    x.expand(4, 3).fill_(2)
    return x * 1


@table(lambda: grown(3, 3))
def filled_with_elements_of_its_own(x: Tensor) -> Tensor:
    x.masked_fill_(x > 1, x[1, 1])
    x[1].fill_(x[1, 2])
    x.index_fill_(0, torch.tensor([2]), x[0, 0])
    return x * x


@table(lambda: plain(3, 3), raises=RuntimeError)
def scattered_into_itself(x: Tensor) -> Tensor:
    return x.index_copy_(0, torch.tensor([1, 2, 0]), x.view_as(x))


@table(lambda: plain(3, 3), raises=RuntimeError)
def rows_in_another_order(x: Tensor) -> Tensor:
    x[torch.tensor([1, 2, 0])] = x
    return x


@table(lambda: plain(3, 3), raises=RuntimeError)
def shifted(x: Tensor) -> Tensor:
    return x[1:].copy_(x[:-1])


@table(lambda: plain(1, 3), raises=RuntimeError)
def expanded(x: Tensor) -> Tensor:
    return x.expand(4, 3).add_(1)


@table(lambda: plain(3, 3), raises=RuntimeError)
def by_its_own_row(x: Tensor) -> Tensor:
    return x.mul_(x[0])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_writes(row: Row, route: Route) -> None:
    row.check(route)


def sliding(x: Tensor) -> Any:
    return x.view(-1).unfold(0, 3, 1).mul_(2)


def by_its_own_column(x: Tensor) -> Any:
    return x.mul_(x[:, :1])


def expanded_from_outside(x: Tensor) -> Any:
    x[0].fill_(1)
    return x * 1


def columns_to_the_right(x: Tensor) -> Any:
    x[:, 1:] = x[:, :-1]
    return x * 1


def of_a_block_and_its_transpose(x: Tensor) -> Any:
    return x[:, :3].add_(x[:, :3].t())


def a_product_with_itself(x: Tensor) -> Any:
    return x[:, :3].addmm_(x[:, :3], x[:, :3])


def masked_elements_of_its_own(x: Tensor) -> Any:
    return x.masked_scatter_(x > 0, x)


def some_of_several_windows(x: Tensor) -> Any:
    """Eager writes these elements alone, of which others show some, too."""
    x.view(-1).unfold(0, 3, 1)[torch.tensor([0, 4])] = 2.0
    return x * 1


REFUSED = {
    a_product_with_itself: "op aten.addmm_.default",
    masked_elements_of_its_own: "op aten.masked_scatter_.default",
    some_of_several_windows: "op aten.index_put_.default",
    sliding: "op aten.mul_.Tensor",
    by_its_own_column: "op aten.mul_.Tensor",
    columns_to_the_right: "op aten.copy_.default",
    of_a_block_and_its_transpose: "op aten.add_.Tensor",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_eager_computes_in_some_order_is_refused(function: Callable[..., Any]) -> None:
    assert refused(function, lambda: plain(3, 4)).construct == REFUSED[function]


def test_a_part_of_an_expanded_input_is_refused() -> None:
    error = refused(expanded_from_outside, lambda: plain(1, 3).expand(2, 3))
    assert error.construct == "a write"


def test_large_tensors_are_compared_quickly() -> None:
    def program(x: Tensor) -> Tensor:
        x[:, :500].add_(x[:, 500:])
        return x.sum()

    check(program, lambda: plain(1000, 1000))
