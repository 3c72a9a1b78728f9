from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.verify import verify
from adjoint.optimize.views import merge_views
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
PERMUTE, VIEW, EXPAND, SIN = (
    aten.permute.default,
    aten.view.default,
    aten.expand.default,
    aten.sin.default,
)
CUBE = torch.randn(2, 3, 4)


def merged(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[Any]:
    module = graph_of(function, *inputs, dynamic=dynamic)
    made = merge_views(module)
    verify(made)
    assert_same(module, made, *inputs)
    assert len(made.graph.nodes) <= len(module.graph.nodes)
    return targets(made)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a: a.permute(1, 2, 0).permute(1, 2, 0).sin(), [PERMUTE, SIN]),
        (lambda a: a.permute(1, 2, 0).permute(2, 0, 1).sin(), [SIN]),
        (lambda a: a.transpose(0, -1).transpose(-1, 0).sin(), [SIN]),
        (lambda a: a.permute(0, 1, 2).sin(), [SIN]),
        (lambda a: a[0].t().t().sin(), [aten.select.int, SIN]),
    ],
)
def test_what_is_merged(function: Callable[..., Any], left: list[Any], dynamic: bool) -> None:
    assert merged(function, CUBE, dynamic=dynamic) == left


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a: a.view(2, 3, 4).sin(), [SIN]),
        (lambda a: a.view(6, 4).view(4, 6).sin(), [VIEW, SIN]),
        (lambda a: a.view(6, 4).view(2, 3, 4).sin(), [SIN]),
        (lambda a: a.view(6, 4).unsqueeze(0).sin(), [VIEW, SIN]),
        (lambda a: a.unsqueeze(1).squeeze(1).sin(), [SIN]),
        (lambda a: a.view(24, 1).expand(24, 1).expand(5, 24, 7).sin(), [VIEW, EXPAND, SIN]),
        (lambda a: a.expand(2, 3, 4).sin(), [SIN]),
    ],
)
def test_what_is_reshaped_once(function: Callable[..., Any], left: list[Any]) -> None:
    assert merged(function, CUBE) == left


def test_reshapes_of_symbolic_sizes() -> None:
    def function(a: Tensor) -> Tensor:
        rows, columns = a.shape[0] * a.shape[1], a.shape[2]
        return a.view(rows, columns).view(columns, rows).sin()

    assert merged(function, CUBE, dynamic=True).count(VIEW) == 1


@pytest.mark.parametrize(
    "function",
    [
        # The transpose in between: the reshape is of other elements.
        lambda a: a.view(6, 4).t().reshape(6, 4).sin(),
        # What is viewed is computed in between.
        lambda a: a.view(6, 4).sin().view(4, 6),
        # An axis that -1 keeps was made by the inner expansion.
        lambda a: a[0, 0].expand(3, 4).expand(2, -1, 4).sin(),
        # No axis moves, but its size changes.
        lambda a: a[:, :1].expand(2, 3, 4).sin(),
    ],
)
def test_what_stays(function: Callable[..., Any]) -> None:
    module = graph_of(function, CUBE)
    assert merged(function, CUBE) == targets(module)


def test_a_view_of_an_input_that_is_returned_stays_a_view() -> None:
    function = lambda a: (a.sin(), torch.ops.aten.alias(a).view(2, 3, 4))  # noqa: E731
    module = graph_of(function, CUBE)
    results = merge_views(module)(CUBE)
    assert all(each is not CUBE for each in results)


def test_views_without_history_keep_those_that_have_one_apart() -> None:
    def function(a: Tensor) -> Tensor:
        with torch.no_grad():
            b = a.permute(1, 2, 0)
        return b.permute(2, 0, 1).sin() * a

    assert merged(function, CUBE).count(PERMUTE) == 2


def test_a_gradient_is_what_the_product_computed() -> None:
    """t(t(mm)), the gradient of a weight, is the product itself: nothing else returns it."""
    made = merge_views(graph_of(lambda a, b: (a @ b).t().t(), torch.ones(2, 3), torch.ones(3, 4)))
    assert targets(made) == [aten.mm.default]


def test_two_results_stay_two_tensors() -> None:
    def function(a: Tensor, b: Tensor) -> Any:
        c = a @ b
        return c, c.clone().t().t()

    module = graph_of(function, torch.ones(2, 3), torch.ones(3, 4))
    one, other = merge_views(module)(torch.ones(2, 3), torch.ones(3, 4))
    assert one.data_ptr() != other.data_ptr()
