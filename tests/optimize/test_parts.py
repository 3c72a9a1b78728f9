from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.verify import verify
from adjoint.optimize.parts import join_parts
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
ADD, SIN, CAT, STACK = (
    aten.add.Tensor,
    aten.sin.default,
    aten.cat.default,
    aten.stack.default,
)
SLICE, SELECT = aten.slice.Tensor, aten.select.int
TABLE = torch.randn(3, 4)
# The parts of a sum of padded parts keep eager's zeros: -0.0 + 0.0 = 0.0.
TABLE[0, 0] = -0.0
TABLE[1, 1] = torch.nan


def joined(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[Any]:
    module = graph_of(function, *inputs, dynamic=dynamic)
    made = join_parts(module)
    verify(made)
    assert_same(module, made, *inputs)
    assert len(made.graph.nodes) <= len(module.graph.nodes)
    return targets(made)


def padded(x: Tensor, index: int, dim: int = 0, size: int = 2) -> Tensor:
    shape = [*x.shape[:dim], size, *x.shape[dim:]]
    return aten.select_backward.default(x, shape, dim, index)  # type: ignore[no-any-return]


def rows(x: Tensor, order: tuple[int, ...] = (0, 1, 2)) -> list[Tensor]:
    return [x.select(0, index) for index in order]


def padded_slice(x: Tensor, start: int, end: int, step: int = 1) -> Tensor:
    return aten.slice_backward.default(x, [3, 4], 1, start, end, step)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda a: padded(a, 0) + padded(a, 1), [STACK, ADD]),
        (lambda a: padded(a, -1, 2) + padded(a, 0, 2), [STACK, ADD]),
        (lambda a: (padded(a, 0, 1, 3) + padded(a, 2, 1, 3)) + padded(a, 1, 1, 3), [STACK, ADD]),
        (
            lambda a: padded(a, 0) + (a.expand(2, 3, 4) + padded(a, 1)),
            [aten.expand.default, STACK, ADD, ADD],
        ),
        (
            lambda a: padded_slice(a[:, :1].sin(), 0, 1) + padded_slice(a[:, 1:].sin(), 1, 9),
            [SLICE, SIN, SLICE, SIN, CAT, ADD],
        ),
        (
            lambda a: torch.stack(rows(a.sin())).cos(),
            [SIN, aten.cos.default],
        ),
        (lambda a: torch.cat(a.sin().split(2, 1), 1).cos(), [SIN, aten.cos.default]),
        (lambda a: torch.stack(a.sin().unbind(1), 1).cos(), [SIN, aten.cos.default]),
        (
            lambda a: torch.stack([a.sin(), a.cos()], 1).select(1, 1).exp(),
            [
                aten.cos.default,
                aten.exp.default,
            ],
        ),
        (
            lambda a: torch.cat([a.sin(), a.cos()], 1)[:, 4:].exp(),
            [aten.cos.default, aten.exp.default],
        ),
        (
            lambda a: torch.cat([a.sin(), a.cos()], 1)[:, 5:7].exp(),
            [aten.cos.default, SLICE, aten.exp.default],
        ),
    ],
)
def test_what_is_joined(function: Callable[..., Any], left: list[Any]) -> None:
    assert joined(function, TABLE) == left


@pytest.mark.parametrize(
    "function",
    [
        # One part twice; a part that is missing; parts of different axes.
        lambda a: padded(a, 0) + padded(a.sin(), 0),
        lambda a: padded(a, 0, 0, 3) + padded(a, 1, 0, 3),
        lambda a: padded(a[:2, :2], 0) + padded(a[:2, :2], 0, 1),
        # Parts that overlap, and every other column.
        lambda a: padded_slice(a[:, :2], 0, 2) + padded_slice(a[:, 1:], 1, 4),
        lambda a: padded_slice(a[:, :2], 0, 4, 2) + padded_slice(a[:, 2:], 1, 4, 2),
        # Something else reads one of them.
        lambda a: (part := padded(a, 0)).sin() + (part + padded(a, 1)),
        # Parts in another order, of another axis, or not all of them.
        lambda a: torch.stack(rows(a.sin(), (1, 0, 2))).cos(),
        lambda a: torch.stack(rows(a.sin()), 1).cos(),
        lambda a: torch.cat([(b := a.sin())[:, :2], b[:, 3:]], 1).cos(),
        lambda a: torch.cat(a.sin().split(2, 1)[::-1], 1).cos(),
        lambda a: torch.cat(a.sin().split(2, 1), 0).cos(),
        # A slice of two parts, and one along another axis.
        lambda a: torch.cat([a.sin(), a.cos()], 1)[:, 3:5].exp(),
        lambda a: torch.cat([a.sin(), a.cos()], 1)[1:].exp(),
        lambda a: torch.stack([a.sin(), a.cos()], 1).select(0, 1).exp(),
        # An existing value does not become a result of the program.
        lambda a: torch.stack(rows(a)),
    ],
)
def test_what_is_left(function: Callable[..., Any]) -> None:
    assert joined(function, TABLE) == targets(graph_of(function, TABLE))


def test_symbolic_sizes() -> None:
    """The number of parts is known, their sizes need not be."""

    def function(a: Tensor) -> Tensor:
        parts = torch.stack([a.sin(), a.cos(), a.exp()], 0)
        return parts[1] * parts[0]

    assert STACK not in joined(function, TABLE, dynamic=True)
    assert SELECT not in joined(function, TABLE, dynamic=True)


def test_an_input_does_not_take_the_place_of_its_copy() -> None:
    made = joined(lambda a: torch.stack(rows(a)).sin(), TABLE)
    assert STACK in made
