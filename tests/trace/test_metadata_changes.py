"""Metadata mutation of views, of detached tensors and of views as another dtype, beside aliases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, Row, Table, leaf, plain

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


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_what_a_moved_tensor_shows(row: Row, route: Route) -> None:
    row.check(route)
