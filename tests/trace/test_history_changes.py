"""`requires_grad_` and `detach_`: of inputs, intermediates and views."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, Row, Table, grown, leaf, plain

table = Table()


@table(lambda: plain(3), dynamo=False)
def requires_grad_at_once(x: Tensor) -> Tensor:
    x.requires_grad_()
    return x * 2


@table(lambda: plain(3), dynamo=False)
def requires_grad_at_the_end(x: Tensor) -> Tensor:
    y = x * 2
    x.requires_grad_()
    return y


@table(lambda: plain(3), dynamo=False)
def requires_grad_in_between(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    x.requires_grad_()
    return y, x * 3


@table(lambda: leaf(3), dynamo=False)
def requires_grad_no_more(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    x.requires_grad_(False)
    return y, x * 3


@table(lambda: (lambda base: (base, base[1:]))(plain(3)), dynamo=False)
def a_view_comes_to_require_grad(x: Tensor, view: Tensor) -> Tensor:
    view.requires_grad_()
    return x * 2


@table(lambda: grown(3))
def detached_by_functions(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x * 2, x * 3
    torch.detach_(y)
    torch.ops.aten.detach_(z)
    torch.ops.aten.detach_.default(x)
    return x * y, y * z


@table(lambda: leaf(3), dynamo=False)
def an_intermediate_comes_to_require_grad(x: Tensor) -> Tensor:
    return (x * 2).detach().requires_grad_()


@table(lambda: plain(3), dynamo=False)
def a_new_leaf_is_used(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).requires_grad_()
    return y, y * 3


@table(lambda: leaf(3), dynamo=False)
def a_new_leaf_is_used_but_not_returned(x: Tensor) -> Tensor:
    y = (x * 2).detach().requires_grad_()
    return y * 3


@table(lambda: grown(3), dynamo=False)
def detach_(x: Tensor) -> Tensor:
    x.detach_()
    return x * 2


@table(lambda: grown(3), dynamo=False)
def detach_after_use(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    x.detach_()
    return y, x * 2


@table(lambda: grown(3), dynamo=False)
def an_intermediate_is_detached(x: Tensor) -> Tensor:
    y = x * 2
    y.detach_()
    return y * x


@table(lambda: grown(3), dynamo=False)
def an_intermediate_is_detached_and_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y * 3
    y.detach_()
    return y, z


@table(lambda: grown(3), dynamo=False)
def detached_and_written(x: Tensor) -> Tensor:
    x.detach_()
    x.mul_(2)
    return x * 2


@table(lambda: grown(3, 3), raises=RuntimeError)
def a_view_is_detached(x: Tensor) -> Tensor:
    return x[0].detach_()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_what_has_another_history(row: Row, route: Route) -> None:
    row.check(route)
