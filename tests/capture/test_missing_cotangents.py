"""Missing cotangents, of which custom functions are told with `set_materialize_grads(False)`."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import adjoint
from tests.parity import ROUTES, Route, Row, Table, leaf

Pair: TypeAlias = tuple[Tensor, Tensor]

TABLE = Table()
DIRECT = Table()
"""What Dynamo does not trace."""


def apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


def leaves() -> Pair:
    return leaf(3), leaf(3)


class Unmaterialized(Function):
    """Is told of results that have no cotangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Pair:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None:
            return None if second is None else second * 3
        return first * 2 if second is None else first * 2 + second * 3


@TABLE(leaves)
def both_results_have_a_cotangent(x: Tensor, y: Tensor) -> Any:
    first, second = apply(Unmaterialized, x)
    return first * y, second


class Particular(Function):
    """What has no cotangent is not as if it were zero; one result is no tensor, one is fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        fixed = x.floor()
        ctx.mark_non_differentiable(fixed)
        return x * 2, "label", fixed, y * 3

    @staticmethod
    def backward(ctx: Any, first: Any, label: None, fixed: None, second: Any) -> Any:
        assert label is None
        assert fixed is None
        x, y = ctx.saved_tensors
        if first is None and second is None:
            return x * 11, None
        if first is None:
            return y * 7, second * 3
        return first * 2, x * 5 if second is None else second * y


class Nothing(Function):
    """Gives no cotangent to what it is computed from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> None:
        return None


@DIRECT(leaves, order=2)
def all_cotangents(x: Tensor, y: Tensor) -> Any:
    return apply(Particular, x, y)


@DIRECT(leaves, order=2)
def the_first_cotangent(x: Tensor, y: Tensor) -> Any:
    return apply(Particular, x, y)[0]


@DIRECT(leaves, order=2)
def the_second_cotangent(x: Tensor, y: Tensor) -> Any:
    return apply(Particular, x, y)[3]


@DIRECT(leaves)
def no_cotangent(x: Tensor, y: Tensor) -> Any:
    return apply(Nothing, apply(Particular, x, y)[0])


class Demanding(Function):
    """Its backward needs the cotangents of both results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Pair:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first * 2 + second * 3


@TABLE(leaves)
def cotangents_that_are_demanded(x: Tensor, y: Tensor) -> Any:
    return apply(Demanding, x * y)


class Exclusive(Function):
    """Its backward refuses the cotangents of both results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Pair:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        assert first is None or second is None
        return first * 2 if first is not None else second


@DIRECT(leaves)
def one_result_has_a_cotangent(x: Tensor, y: Tensor) -> Any:
    return apply(Exclusive, x * y)[1] * y


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_custom_functions_are_eagers(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.parametrize("row", DIRECT, ids=str)
def test_custom_functions_that_dynamo_refuses(row: Row) -> None:
    row.check(Route.DIRECT)


def test_a_missing_cotangent_is_zeros() -> None:
    x = leaf(3)
    captured = adjoint.capture(both_results_have_a_cotangent, x, x)
    _, second = adjoint.run(captured, x, x)
    assert torch.equal(torch.autograd.grad(second.sum(), x)[0], torch.full((3,), 3.0).double())


def test_a_demanded_cotangent_that_is_missing_is_an_error_in_the_backward() -> None:
    x = leaf(3)
    captured = adjoint.capture(cotangents_that_are_demanded, x, x)
    with pytest.raises(TypeError):
        cotangents_that_are_demanded(x, x)[0].sum().backward()
    with pytest.raises(RuntimeError, match="set_materialize_grads"):
        adjoint.run(captured, x, x)[0].sum().backward()


def test_a_cotangent_that_is_refused_is_an_error_in_the_backward() -> None:
    x = leaf(3)
    both = adjoint.run(adjoint.capture(lambda x: apply(Exclusive, x), x), x)
    with pytest.raises(RuntimeError, match="set_materialize_grads"):
        (both[0] + both[1]).sum().backward()
