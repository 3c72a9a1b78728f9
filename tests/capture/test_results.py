"""What a program returns: inputs, new tensors, numbers and other objects, under every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from tests.parity import (
    ROUTES,
    Inputs,
    Route,
    Row,
    Table,
    call,
    compare,
    leaf,
    plain,
    refused,
    through,
)

table = Table()


@table(lambda: leaf(3), compiles=False)
def an_input(x: Tensor) -> Tensor:
    return x


@table(lambda: (leaf(3), plain(3)))
def inputs_twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return y, x, y, x + y


@table(lambda: (leaf(3), torch.arange(3)))
def without_a_derivative(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    return x > 0, x.argmax(), index * 2, x.detach() * 2, x.long(), index[1:], index


@table(lambda: leaf(3, 4))
def of_an_op_with_several_results(x: Tensor) -> Any:
    values, indices = x.max(1)
    return {"values": values, "indices": indices, "top": tuple(x.topk(2))}


@table(lambda: leaf(3))
def no_tensors(x: Tensor) -> Any:
    return None, 3, 2.5, True, "text", x * 2, [], {"a": None}


@table(lambda: leaf(3))
def sizes(x: Tensor) -> Any:
    return x.shape[0], x.numel() + 1, list((x * 2).shape), x * 2


@table(lambda: leaf(3))
def nothing(x: Tensor) -> None:
    x * 2


@table(lambda: leaf(3), dynamo=False)
def new_tensors(x: Tensor) -> tuple[Tensor, ...]:
    return torch.zeros(2), torch.arange(3), torch.tensor([1.0, 2.0]), torch.full((2,), 7), x * 1


@table(lambda: plain(3))
def a_constant_is_new_each_time(x: Tensor) -> Tensor:
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    y.add_(x)
    return y


@table(lambda: leaf(3))
def of_a_no_grad_region(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    with torch.no_grad():
        z = y * 3
        w = y[1:]
        with torch.enable_grad():
            v = y * 4
    return y, z, w, v


@table(lambda: leaf(3))
def of_an_inference_region(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.inference_mode():
        z = y * 3
        w = z[1:].add_(1)
    return y, w


@table(lambda: (leaf(2, 2), leaf(2, 2)))
def of_autocast(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x, w = x.float(), w.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = x @ w
    return y, z, y.sum()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_results(row: Row, route: Route) -> None:
    row.check(route)


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ],
    ids=["no_grad", "enable_grad", "inference_mode", "autocast"],
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_under_a_mode(around: Callable[[], Any], route: Route) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = x @ w
        row = y[0]
        y.mul_(2)
        b.add_(1)
        return y, row, b.t(), w[1:]

    def make() -> tuple[Tensor, ...]:
        return leaf(2, 2, dtype=torch.float32), plain(2, 2).float(), plain(2, 2)

    eager, compiled = (Inputs(program, make, 0) for _ in range(2))

    def under(run: Callable[[], Any]) -> Callable[[], Any]:
        def inside() -> Any:
            with around():
                return run()

        return inside

    expected = call(eager, under(lambda: program(*eager.args)), 1)
    with through(compiled, route, compiles=True) as run:
        compare(expected, call(compiled, under(run), 1))


def test_a_base_that_was_not_passed_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        assert x._base is not None
        x._base.mul_(2)
        return x * 1

    assert refused(program, lambda: plain(3, 4)[1]).construct == "the base of a view"


class Box:
    def __init__(self, held: Tensor) -> None:
        self.held = held


def test_a_result_that_hides_a_tensor_is_refused() -> None:
    with pytest.raises(adjoint.CaptureError, match="a result of type Box"):
        adjoint.capture(lambda x: (x * 2, Box(x + 1)), torch.ones(3))
