"""Returned views of inputs and of intermediates, and the recipes that make them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.calling import FromCaller, FromRecipe, Replay, View
from tests.parity import ROUTES, Route, Row, Table, leaf, plain

table = Table()


@table(lambda: leaf(3, 4))
def views_of_an_input(x: Tensor) -> tuple[Tensor, ...]:
    return x[1], x.t(), x.view(-1)[2:], x * 2


@table(lambda: leaf(3, 4))
def views_of_an_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y[1], y.t()


@table(lambda: leaf(3, 4))
def an_intermediate_and_its_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y[1], y, y.t(), y


@table(lambda: leaf(3, 4))
def the_same_view_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    row = (x * 2)[1]
    return row, row


@table(lambda: leaf(3, 4))
def views_of_views(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).t()
    z = y[1:]
    return z.unsqueeze(0), z, y


@table(lambda: leaf(4, 3))
def several_views_of_one_op(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return (*y.unbind(), *y.split(2), *x.chunk(2, 1))


@table(lambda: leaf(3, 4))
def a_detached_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.detach()


@table(lambda: leaf(3, 4))
def a_detached_intermediate_alone(x: Tensor) -> Tensor:
    return (x * 2).detach()


@table(lambda: leaf(3, 4))
def views_of_detached(x: Tensor) -> tuple[Tensor, ...]:
    y = x.detach()
    return y[1], y, y.t()


@table(lambda: leaf(3, 4), dynamo=False)
def views_of_data(x: Tensor) -> tuple[Tensor, ...]:
    y = x.data
    return y[1], y, y.t(), x.data


@table(lambda: leaf(3, 4))
def views_of_a_tensor_written_through_a_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[1] = 0
    row = y[2]
    y.t()[0].mul_(x[:, 0])
    return row, y


@table(lambda: leaf(2, 3, 4))
def layouts(x: Tensor) -> tuple[Tensor, ...]:
    y = x.permute(2, 0, 1)
    return y.contiguous(), y + 1, torch.empty_like(y).copy_(y), y.clone(), y.mT


@table(lambda: plain(2, 3, 4, 4))
def channels_last(x: Tensor) -> tuple[Tensor, ...]:
    y = x.to(memory_format=torch.channels_last)
    y.mul_(2)
    return y, y[0], y.relu()


@table(lambda: leaf(1, 3))
def expanded(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return x.expand(4, 3), y.expand(2, 3)


@table(lambda: leaf(3, dtype=torch.complex128))
def of_complex_numbers(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2j
    return y.real, y.imag, y.conj(), torch.view_as_real(y), x.conj(), y.abs(), x.conj() * 2


@table(lambda: leaf(3), compiles=False)
def only_views_of_an_input(x: Tensor) -> list[Tensor]:
    return [x[1:], x.detach(), x]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_returned_views(row: Row, route: Route) -> None:
    row.check(route)


def recipes_of(function: object, *inputs: Tensor) -> list[object]:
    calling = adjoint.capture(function, *inputs).calling  # type: ignore[arg-type]
    return [calling.recipes[position] for position in calling.results]


def test_a_view_of_an_input_is_replayed_on_the_input() -> None:
    (view,) = recipes_of(lambda x: x[0].t(), plain(3, 4, 5))
    assert isinstance(view, View)
    assert view.of == FromCaller(0)
    ops = [step.op for step in view.steps if isinstance(step, Replay)]
    assert ops == [torch.ops.aten.select.int, torch.ops.aten.t.default]


def test_a_tensor_returned_twice_has_one_recipe() -> None:
    calling = adjoint.capture(lambda x: (y := x * 2, y), plain(3)).calling
    assert calling.results == (0, 0)
    assert len(calling.recipes) == 1


def test_a_view_that_others_are_computed_from_is_made_of_the_result_it_is_a_view_of() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        row = y[0]
        part = row[1:]
        return y, row, part, (part * 3).sum()

    captured = adjoint.capture(program, leaf(3, 4))
    assert captured.calling.view_values
    row, part = (captured.calling.recipes[captured.calling.results[i]] for i in (1, 2))
    assert isinstance(row, View)
    assert isinstance(part, View)
    assert part.of == FromRecipe(captured.calling.results[1])


@pytest.mark.parametrize(
    "view",
    [
        lambda x, n: x.as_strided((2, 2), (1, 1), n),
        lambda x, n: x.as_strided((n, x.shape[0]), (1, n), 0),
        lambda x, n: (x * 2).as_strided((n,), (x.shape[0],), n),
    ],
)
def test_where_a_view_lies_is_read_in_each_call(view: Callable[[Tensor, int], Tensor]) -> None:
    torch._dynamo.reset()
    compiled: Callable[[Tensor, int], Tensor] = torch.compile(view, backend="adjoint", dynamic=True)
    for size, n in ((4, 2), (4, 1), (5, 3), (4, 0)):
        x = plain(size, 4).requires_grad_()
        ours, eager = compiled(x, n), view(x, n)
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
        assert ours.stride() == eager.stride()
        (one,), (other,) = (torch.autograd.grad(y.sin().sum(), x) for y in (ours, eager))
        torch.testing.assert_close(one, other, rtol=0, atol=0)
