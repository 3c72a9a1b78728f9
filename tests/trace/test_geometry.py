"""Strided windows on memory: how a tensor is found, and read, by where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.trace.geometry import dense_order, extent, same_layout, same_place
from tests.parity import ROUTES, Route, Row, Table, check, grown, leaf, plain, refused


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.zeros(2, 3), [0, 1]),
        (torch.zeros(2, 3).t(), [1, 0]),
        (torch.zeros(2, 3, 4).permute(1, 2, 0), [2, 0, 1]),
        (torch.zeros(2, 1, 3), [0, 1, 2]),
        (torch.zeros(4, 4)[:, ::2], None),
        (torch.zeros(4, 4)[1:], [0, 1]),
        (torch.zeros(1, 3).expand(2, 3), None),
        (torch.zeros(()), []),
    ],
)
def test_the_order_of_axes_in_memory(tensor: Tensor, order: list[int] | None) -> None:
    assert dense_order(tensor) == order


def test_extent() -> None:
    x = torch.zeros(4, 5)
    assert extent(x) == 20
    assert extent(x[:, ::2]) == 20
    assert extent(x[1:3, 1:2]) == 6
    assert extent(x[:0]) == 0
    assert extent(x[0, 0]) == 1


def test_layouts_and_places() -> None:
    x = torch.zeros(4, 4)
    assert same_layout(x, torch.ones(4, 4))
    assert not same_layout(x, x.t())
    assert same_place(x[1], x[1])
    assert not same_place(x[1], x[2])
    assert not same_place(x, x.view(torch.int32))


table = Table()


@table(lambda: plain(3, 4))
def of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.as_strided((2, 2), (4, 2), 1)
    y.mul_(2)
    return y, x.sum()


@table(lambda: plain(5, 4)[2:].detach())
def of_an_input_that_begins_late(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.as_strided((2, 2), (4, 2), 9)
    return y * 2, x.as_strided((2,), (1,))


@table(lambda: plain(5, 4)[2:])
def of_a_view_that_begins_late(x: Tensor) -> Tensor:
    x.as_strided((2, 2), (4, 2), 9).add_(1)
    return x * 2


@table(lambda: grown(3, 4))
def of_a_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t().as_strided((2, 3), (1, 4), 1)
    y.mul_(2)
    return y * 1, x


@table(lambda: plain(3, 4).t().detach())
def of_an_input_in_another_order(x: Tensor) -> Tensor:
    x.as_strided((2,), (1,), 3).add_(1)
    return x * 2


@table(lambda: leaf(3, 4))
def of_an_intermediate_in_another_order(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t() * 2
    z = y.as_strided((2, 2), (4, 1), 2)
    z.mul_(3)
    return z, y


def two_rows() -> tuple[Tensor, Tensor]:
    base = plain(3, 4)
    return base[0], base[1]


@table(two_rows)
def across_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.as_strided((2, 2), (4, 1), 2).mul_(3)
    return x * 1, y * 1


@table(two_rows)
def across_inputs_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.as_strided((8,), (1,)), y * 2


def two_halves_over_one_memory() -> tuple[Tensor, Tensor]:
    base = plain(4, 4)
    return base[:2].data, base[2:].data


@table(two_halves_over_one_memory)
def across_inputs_without_a_common_base(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.as_strided((4, 2), (4, 1))
    z.mul_(3)
    return z, y * 1


@table(lambda: (plain(3, 4), plain(2)))
def of_complex_numbers(x: Tensor, y: Tensor) -> Tensor:
    z = torch.view_as_complex(x.view(3, 2, 2))
    z.as_strided((2,), (2,), 1).mul_(2j)
    return x * 1


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_as_strided(row: Row, route: Route) -> None:
    row.check(route)


def outside(x: Tensor) -> Any:
    return x.as_strided((2, 4), (4, 1), 0) * 2


def in_the_gaps(x: Tensor) -> Any:
    return x.t().as_strided((2, 2), (4, 1)) * 2


def without_a_gradient(x: Tensor) -> Any:
    return (x * 2)[:, 0].as_strided((2, 2), (4, 1)) * 2


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (outside, lambda: plain(3, 4)[1]),
        (in_the_gaps, lambda: plain(3, 4)[:, ::2]),
        (without_a_gradient, lambda: leaf(3, 4)),
    ],
)
def test_what_is_refused(function: Any, make: Any) -> None:
    error = refused(function, make)
    assert error.construct in ("as_strided", "a strided view of memory")
    assert error.remedy


def test_memory_that_eager_does_not_have_either() -> None:
    def beyond(x: Tensor, y: Tensor) -> Tensor:
        x.view(-1).as_strided((2,), (1,))
        return y * 2

    def inputs() -> tuple[Tensor, Tensor]:
        x = plain()
        return x, x.data

    check(beyond, inputs, raises=RuntimeError)


def test_views_of_memory_that_is_empty_this_time() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, rows, x[columns].sin())

    compiled = torch.compile(function, backend="adjoint", fullgraph=True)
    x = torch.randn(5, dtype=torch.float64)
    for count in (3, 4, 0, 2, 0):
        pairs = (torch.arange(25).view(5, 5) < count).nonzero(as_tuple=True)
        torch.testing.assert_close(compiled(x, *pairs), function(x, *pairs))


def _spectrum(x: Tensor) -> Tensor:
    window = torch.ones(16, dtype=x.dtype)
    return torch.stft(x, 16, center=False, return_complex=True, window=window).abs()


# Inputs with gaps between their elements, or with several elements in one place.
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: grown(2, 64, 2)[..., 0], id="interleaved"),
        pytest.param(lambda: leaf(64, 3).t()[1:], id="transposed"),
        pytest.param(lambda: leaf(1, 64).expand(2, 64), id="expanded"),
        pytest.param(lambda: leaf(64).unfold(0, 32, 16), id="overlapping"),
    ],
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_windows_on_a_tensor_with_gaps(make: Callable[[], Tensor], route: Route) -> None:
    check(_spectrum, make, route, order=2)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_writing_through_a_window_on_a_tensor_with_gaps(route: Route) -> None:
    def program(x: Tensor) -> Tensor:
        x.as_strided((3,), (4,)).mul_(2)
        return x * 1

    check(program, lambda: plain(20)[::2], route)
