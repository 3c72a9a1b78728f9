from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.differentiate.activity import active_nodes, is_differentiable, nodes_requiring_grad
from adjoint.graph.metadata import outputs_of
from tests.control_flow import cond, scan
from tests.parity import leaf, plain


def active(function: Callable[..., Any], *args: Any, wrt: tuple[int, ...] = (0,)) -> list[bool]:
    """For each output, whether a derivative with respect to the inputs `wrt` flows into it."""
    module = adjoint.capture(function, *args).graph_module
    found = active_nodes(module, wrt)
    return [node in found for node in outputs_of(module.graph)]


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.sin()


def written_without_grad(x: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=x.dtype)
    with torch.no_grad():
        y.copy_(x)
    return y * 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sin(), [True]),
        (lambda x: x.detach() * 2, [False]),
        (lambda x: x.argmax(), [False]),
        (lambda x: x > 0, [False]),
        (lambda x: x.long().double(), [False]),
        (lambda x: x.floor(), [True]),  # Its derivative is zero, and eager records it.
        (lambda x: torch.zeros_like(x) + 1, [False]),
        (lambda x: torch.rand_like(x) + 1, [False]),
        (lambda x: x.new_full((2,), 3.0), [False]),
        (lambda x: x.histc(4), [False]),  # Eager has no derivative of these, and says so by this.
        (lambda x: torch.special.bessel_j0(x) * 2, [False]),
        (lambda x: torch.special.laguerre_polynomial_l(x, x.detach()), [False]),
        (lambda x: tuple(x.sort()), [True, False]),
        (lambda x: tuple(x.max(0)), [True, False]),
        (under_no_grad, [False]),
        (written_without_grad, [False]),
    ],
)
def test_what_a_derivative_flows_through(
    function: Callable[[Tensor], Any], expected: list[bool]
) -> None:
    found = active(function, leaf(3))
    assert found[: len(expected)] == expected
    results = function(leaf(3))
    eager = [each.requires_grad for each in (results if isinstance(results, tuple) else [results])]
    assert eager[: len(expected)] == expected


def test_only_the_chosen_inputs_count() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sin(), y.cos(), x * y

    given = leaf(3), leaf(3)
    assert active(function, *given, wrt=(0,)) == [True, False, True]
    assert active(function, *given, wrt=(1,)) == [False, True, True]
    assert active(function, *given, wrt=()) == [False, False, False]


def test_statistics_of_a_normalization_have_no_derivative() -> None:
    def function(x: Tensor) -> Any:
        return torch.ops.aten.native_layer_norm(x, [3], None, None, 1e-5)

    found = active(function, leaf(2, 3))
    eager = [each.requires_grad for each in function(leaf(2, 3))]
    assert found == eager


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (plain(2), True),
        (torch.ones(2, dtype=torch.complex64), True),
        (torch.ones(2, dtype=torch.int32), False),
        (torch.ones(2, dtype=torch.bool), False),
        ((plain(2), torch.arange(2)), True),
        ([torch.arange(2)], False),
        (3.0, False),
        (None, False),
    ],
)
def test_differentiable(value: Any, expected: bool) -> None:
    assert is_differentiable(value) is expected


def test_what_requires_grad_without_a_derivative() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            part, constant = y[1:], y * 3
        return part * 2, constant * 2, part.detach() * 2, part.argmax(), y * 2

    module = adjoint.capture(function, leaf(3)).graph_module
    outputs = outputs_of(module.graph)
    requiring, active = nodes_requiring_grad(module, [0]), active_nodes(module, [0])
    assert [node in requiring for node in outputs] == [True, False, False, False, True]
    assert [node in active for node in outputs] == [False, False, False, False, True]
    assert [each.requires_grad for each in function(leaf(3))] == [
        node in requiring for node in outputs
    ]


def test_a_derivative_flows_through_bodies_as_through_what_they_mean() -> None:
    def branches(x: Tensor) -> Any:
        return cond(
            x.sum() > 0,
            lambda a: (a.sin(), a.detach(), a.detach() * 2),
            lambda a: (a.detach() * 3, a.detach() * 2, a.cos()),
            (x,),
        )

    assert active(branches, leaf(3)) == [True, False, True]

    def loop(x: Tensor, y: Tensor) -> Any:
        def step(carry: Any, a: Tensor) -> Any:
            first, second, third = carry
            return (first * 2, second + a, second.sin() + third), (first, third)

        zeros = [torch.zeros(3, dtype=x.dtype) for _ in range(3)]
        (first, second, third), steps = scan(step, tuple(zeros), x)
        return first, second, third, *steps

    assert active(loop, leaf(2, 3), leaf(3)) == [False, True, True, False, True]
