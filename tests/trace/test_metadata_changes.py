"""Metadata mutation: inputs, intermediates, views, detached tensors, views as another dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, Row, Table, grown, leaf, plain, refused

table = Table()


def square() -> Any:
    return (leaf(4, 6),)


def without_grad() -> Any:
    return (plain(4, 6),)


@table(square)
def squeezed_and_detached(x: Tensor) -> Any:
    v = -x
    v.squeeze_()
    v.detach_()
    return v.view(-1, 2), v


@table(square)
def squeezed_and_detached_under_a_view(x: Tensor) -> Any:
    y = x * 2
    w = y.view(-1)
    y.squeeze_()
    y.detach_()
    return w.detach(), y, y[0]


@table(square)
def transposed_under_a_flat_view(x: Tensor) -> Any:
    y = x * 2
    flat = y.view(-1)
    flat.mul_(x.view(-1))
    y.t_()
    return y.sin(), flat


@table(square)
def moved_under_a_flat_view(x: Tensor) -> Any:
    y = x * 2
    flat = y.view(-1)
    flat.neg_()
    y.unsqueeze_(0).transpose_(0, 2)
    return y, flat


@table(square)
def another_dtype(x: Tensor) -> Any:
    y = x * 2
    v = y.detach().view(torch.int16)
    y.mul_(2)
    v.unsqueeze_(0)
    return v, y


@table(square)
def another_dtype_moved_twice(x: Tensor) -> Any:
    y = x.detach().clone()
    w = y.view(torch.int32)
    row = w[0]
    w.t_()
    y.add_(1)
    w.unsqueeze_(1)
    return row, w[0], w, y


@table(square)
def detached(x: Tensor) -> Any:
    y = x * 2
    v = y.detach()
    row = v[0]
    v.unsqueeze_(0)
    return v, row, v[0], y


@table(square)
def a_view(x: Tensor) -> Any:
    y = x * 2
    v = y[1]
    v.unsqueeze_(0)
    w = v[0]
    y.mul_(2)
    return v, w


@table(square)
def one_of_several_views(x: Tensor) -> Any:
    y = x.detach() * 2
    z = y.unbind(0)[1]
    z.unsqueeze_(0)
    y.add_(1)
    z.mul_(2)
    return y, z


@table(square)
def as_strided_of_a_view(x: Tensor) -> Any:
    y = x * 2
    v = y[1:]
    row = v[0]
    v.as_strided_((2,), (3,), 7)
    first = v[:1]
    v.mul_(3)
    return v, y, row, first


@table(square, dynamo=False)
def resized_to_less_under_a_view(x: Tensor) -> Any:
    y = x.detach().clone()
    v = y.view(-1)
    y.resize_(2, 2)
    y.add_(1)
    return y, v


@table(square)
def as_strided_to_less_and_detached(x: Tensor) -> Any:
    y = x * 2
    y.as_strided_((2,), (3,), 7)
    y.detach_()
    return y, y[0]


@table(square)
def complex_as_real(x: Tensor) -> Any:
    y = torch.view_as_complex(x.view(4, 3, 2) * 2)
    r = torch.view_as_real(y)
    r.transpose_(0, 1)
    y.mul_(2)
    return r, y


@table(square)
def imaginary_part(x: Tensor) -> Any:
    y = torch.view_as_complex(x.view(4, 3, 2) * 2)
    r = y.imag
    r.t_()
    y.mul_(2)
    r.add_(1)
    return r, y, y.conj().t_()


@table(square)
def data_attribute(x: Tensor) -> Any:
    y = x * 2
    v = y.data
    v.t_()
    y.mul_(2)
    v.swapaxes_(0, 1)
    return v, y


@table(square)
def detached_input(x: Tensor) -> Any:
    x = x.detach()
    x.t_()
    y = x[0]
    x.unsqueeze_(0)
    x.add_(1)
    return y, x


@table(square)
def set_to_memory_of_another(x: Tensor) -> Any:
    y = x.detach() * 2
    z = torch.zeros(2, dtype=x.dtype)
    z.set_(y)  # type: ignore[call-overload]
    z.t_()
    z.add_(1)
    return y, z


@table(without_grad, dynamo=False)
def an_input_twice(x: Tensor) -> Any:
    x.t_()
    v = x[0]
    x.unsqueeze_(0)
    x.add_(1)
    return v, x


@table(without_grad, dynamo=False)
def an_input_under_another_dtype(x: Tensor) -> Any:
    v = x.view(torch.int32)
    x.t_()
    x.add_(1)
    v.unsqueeze_(0)
    return v, x


@table(without_grad, dynamo=False)
def an_input_resized_to_less(x: Tensor) -> Any:
    v = x[0]
    x.resize_(2, 2)
    x.add_(1)
    return x[0], v


@table(without_grad, dynamo=False)
def an_input_assigned_to(x: Tensor) -> Any:
    y = x.detach() * 2
    x.data = y
    x.t_()
    y.add_(1)
    return x[0], y


@table(lambda: grown(3, 4), dynamo=False)
def t_(x: Tensor) -> Tensor:
    return x.t_() * 2


@table(lambda: plain(3, 4), dynamo=False)
def t_then_write(x: Tensor) -> Tensor:
    x.t_()
    x[0].add_(1)
    return x.sum(0)


@table(lambda: plain(3, 4), dynamo=False)
def write_then_t(x: Tensor) -> Tensor:
    x[0].add_(1)
    x.t_().mul_(2)
    return x.sum(0)


@table(lambda: grown(2, 3, 4), dynamo=False)
def transpose_(x: Tensor) -> Tensor:
    x.transpose_(0, 2)
    return x * 2


@table(lambda: grown(2, 3, 4), dynamo=False)
def swapaxes_(x: Tensor) -> Tensor:
    x.swapaxes_(0, 1)
    return x * 2


@table(lambda: grown(1, 3, 1), dynamo=False)
def squeeze_(x: Tensor) -> Tensor:
    x.squeeze_()
    return x * 2


@table(lambda: grown(1, 3, 1), dynamo=False)
def squeeze_dim_(x: Tensor) -> Tensor:
    x.squeeze_(-1)
    return x * 2


@table(lambda: grown(3, 4), dynamo=False)
def unsqueeze_(x: Tensor) -> Tensor:
    x.unsqueeze_(1)
    return x * 2


@table(lambda: plain(3, 4), dynamo=False)
def as_strided_(x: Tensor) -> Tensor:
    x.as_strided_((2, 3), (4, 1), 1)
    x.mul_(2)
    return x + 1


@table(lambda: plain(3, 4), dynamo=False)
def several_moves(x: Tensor) -> Tensor:
    x.t_().unsqueeze_(0).transpose_(1, 2)
    x.squeeze_(0).t_()
    return x @ x.T


@table(lambda: grown(3, 4), dynamo=False)
def an_intermediate_is_moved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[1]
    y.t_()
    y[0].mul_(3)
    return y, row


@table(lambda: grown(3, 4), dynamo=False)
def an_intermediate_is_moved_and_its_view_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.unsqueeze_(0)
    return y[0, 1], y


@table(lambda: grown(3, 4))
def a_view_is_moved(x: Tensor) -> Tensor:
    y = x[1:]
    y.t_()
    return y


@table(lambda: grown(3, 4), dynamo=False)
def a_view_of_an_input_outlives_its_move(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x[1]
    x.t_()
    after = x[1]
    return before, after


@table(lambda: grown(3, 4), dynamo=False)
def a_moved_input_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    return x, x.view_as(x)


@table(lambda: plain(3), dynamo=False)
def moved_and_moved_back(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x.add_(1)
    x.squeeze_(0)
    return x


@table(lambda: plain(6), dynamo=False)
def resize_smaller(x: Tensor) -> Tensor:
    x.resize_(2, 2)
    return x + 1


@table(lambda: plain(6), dynamo=False)
def resize_and_fill(x: Tensor) -> Tensor:
    x.resize_(3, 4).fill_(2)
    return x + 1


@table(lambda: plain(6), dynamo=False)
def an_intermediate_is_resized(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(2, 2)
    return y


@table(lambda: plain(6), dynamo=False)
def an_intermediate_is_resized_larger(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(3, 4).zero_()
    return y


@table(lambda: (plain(3), plain(4)), dynamo=False)
def set_to_an_input(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)  # type: ignore[call-overload]
    return x + 1


@table(lambda: (plain(3), plain(4)), dynamo=False)
def set_to_an_input_and_written(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)  # type: ignore[call-overload]
    x.mul_(2)
    return x + y


@table(lambda: (plain(3), plain(4)), dynamo=False)
def set_to_a_new_tensor(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y * 2)  # type: ignore[call-overload]
    return x + 1


@table(lambda: (plain(3), plain(4)), dynamo=False)
def set_to_a_new_tensor_and_written(x: Tensor, y: Tensor) -> Tensor:
    z = y * 2
    x.set_(z)  # type: ignore[call-overload]
    x.add_(1)
    return z + x


@table(lambda: (plain(3), plain(4)), dynamo=False)
def set_to_a_new_tensor_that_is_returned(x: Tensor, y: Tensor) -> Tensor:
    z = y * 2
    x.set_(z)  # type: ignore[call-overload]
    return z


@table(lambda: (plain(3), plain(4)), dynamo=False)
def an_intermediate_is_set(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    z.set_(y)  # type: ignore[call-overload]
    return z + 1, z


@table(lambda: leaf(3))
def data_of_an_input_is_assigned(x: Tensor) -> Tensor:
    x.data = x.data * 2
    return x * x


@table(lambda: (grown(3), leaf(3)))
def data_of_a_computed_input_is_assigned(x: Tensor, y: Tensor) -> Tensor:
    before = x.sin()
    x.data = y.detach() * 2
    return x * y * before


@table(lambda: (leaf(3), plain(3)))
def data_of_an_input_becomes_that_of_another(x: Tensor, y: Tensor) -> Tensor:
    x.data = y
    return x * x


@table(lambda: (leaf(3), leaf(3)))
def data_of_two_inputs_is_swapped(x: Tensor, y: Tensor) -> Tensor:
    former = x.data
    x.data = y.data
    y.data = former
    return x * y * y


@table(lambda: leaf(3))
def data_of_an_input_is_assigned_to_itself(x: Tensor) -> Tensor:
    x.data = x.data
    return x * x


@table(lambda: leaf(3))
def an_input_is_assigned_to_its_own_data(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.data = x.to(torch.float64)
    return x * x


@table(lambda: (plain(3), plain(3)), dynamo=False)
def an_input_is_set_to_itself(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.set_(x).add_(y)  # type: ignore[call-overload]
    z = x * y
    z.set_(z)  # type: ignore[call-overload]
    return x + 1, z


@table(lambda: plain(3, 4), dynamo=False)
def a_view_is_set_to_another_of_the_same_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x[0]
    row.set_(x[1])  # type: ignore[call-overload]
    row.add_(1)
    return x * 1, row


@table(lambda: (leaf(3), plain(3)), dynamo=False)
def an_input_with_a_history_is_set(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        x.set_(y * 2)  # type: ignore[call-overload]
    return x * x


def test_a_recorded_set_of_a_tensor_that_requires_grad_is_refused() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z = x * 1
        z.set_(y)  # type: ignore[call-overload]
        return z * z

    def set_to_itself(x: Tensor) -> Tensor:
        z = x * 1
        z.set_(z)  # type: ignore[call-overload]
        return z * z

    assert "no derivative of set_" in refused(program, lambda: (leaf(3), plain(3))).why
    assert "no derivative of set_" in refused(set_to_itself, lambda: leaf(3)).why


@table(lambda: plain(3, 1), dynamo=False)
def a_part_is_shown_after_all_was_written(x: Tensor) -> Tensor:
    x.sin_()
    flat = x.view(-1)
    x.as_strided_((2,), (1,))
    return flat * 1


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_what_a_moved_tensor_shows(row: Row, route: Route) -> None:
    row.check(route)


def moved_nowhere(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    torch.ops.aten.t_.default(x)
    return x * x, x.sin()


def test_an_input_that_is_written_to_and_moved_to_where_it_is() -> None:
    """With respect to itself, as eager has it."""
    found = []
    for run in (moved_nowhere, torch.compile(moved_nowhere, backend="adjoint", fullgraph=True)):
        x = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True) * 1
        sums = [each.sum() for each in run(x)]
        found.append([torch.autograd.grad(each, x, retain_graph=True) for each in sums])
    torch.testing.assert_close(found[1], found[0])


def leaf_that_shares_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.detach().requires_grad_()
    return y, y * 3


def resized_under_a_view(x: Tensor) -> Tensor:
    row = x[:2]
    x.resize_(3, 4).fill_(1)
    return row + 1


def written_then_set(x: Tensor) -> Tensor:
    x.add_(1)
    x.set_(x * 2)  # type: ignore[call-overload]
    return x


def written_then_a_leaf(x: Tensor) -> Tensor:
    x.add_(1)
    x.requires_grad_()
    return x * 2


def moved_then_a_leaf(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x.requires_grad_()
    return x * 2


def set_to_nothing(x: Tensor) -> Tensor:
    x.set_()  # type: ignore[call-overload]
    return x * 2


@pytest.mark.parametrize(
    ("function", "construct", "why"),
    [
        (leaf_that_shares_memory, "requires_grad_", "the new leaf is returned"),
        (resized_under_a_view, "resize_", "other tensors show the same memory"),
        (written_then_set, "set_", "it was moved to other memory"),
        (written_then_a_leaf, "requires_grad_", "the input was written to or moved before"),
        (moved_then_a_leaf, "requires_grad_", "the input was written to or moved before"),
        (set_to_nothing, "set_", "the memory it moves to is unknown to capture"),
    ],
)
def test_what_is_refused(function: Callable[..., Any], construct: str, why: str) -> None:
    error = refused(function, lambda: plain(6))
    assert error.construct == construct
    assert why in error.why
    assert error.source is not None
    assert f"{construct}(" in error.source.text
