from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import adjoint
from adjoint.runtime.cpu import reached
from adjoint.torch_private import handles
from tests.versions import TORCH


class Product(torch.autograd.Function):
    found: list[tuple[int, ...]] = []  # noqa: RUF012 - emptied by each test

    @staticmethod
    def forward(ctx: Any, number: int, *factors: torch.Tensor) -> torch.Tensor:
        return torch.stack(factors).prod(0) * number

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[object, ...]:
        ask = reached.reached_inputs()
        assert ask is not None
        count = len(ctx.needs_input_grad) - 1
        Product.found.append(ask(ctx, count))
        return (None, *[cotangent] * count)


@pytest.fixture
def factors() -> list[torch.Tensor]:
    if TORCH < (2, 13) and not reached.asks_natively():
        pytest.skip("this torch does not show the function; it is asked in Python")
    Product.found.clear()
    return [torch.ones(2, requires_grad=n % 10 != 2) for n in range(100)]


def test_gradients_that_a_pass_uses(factors: list[torch.Tensor]) -> None:
    inner = factors[3] * 2
    used = [*factors[:3], inner, *factors[4:]]
    result = Product.apply(1, *used).sum()  # type: ignore[no-untyped-call]
    every = tuple(n for n in range(100) if n % 10 != 2)
    cases: list[tuple[list[torch.Tensor], tuple[int, ...]]] = [
        ([factors[0]], (0,)),
        ([factors[3]], (3,)),
        ([inner], (3,)),
        ([factors[99], factors[1]], (1, 99)),
        ([factors[3], inner], (3,)),
    ]
    for asked, expected in cases:
        torch.autograd.grad(result, asked, retain_graph=True)
        assert Product.found.pop() == expected
    result.backward(inputs=[factors[70]], retain_graph=True)
    assert Product.found.pop() == (70,)
    result.backward()
    assert Product.found.pop() == every


def test_a_pass_inside_a_pass(factors: list[torch.Tensor]) -> None:
    """The inner pass is asked about, and then the outer one again."""
    x, y, z = factors[0], factors[1], factors[3]
    inner = Product.apply(1, y, z).sum()  # type: ignore[no-untyped-call]
    result = Product.apply(1, x, y).sum()  # type: ignore[no-untyped-call]
    result.register_hook(lambda _: torch.autograd.grad(inner, z)[0].sum())
    torch.autograd.grad(result, y)
    assert Product.found == [(1,), (1,)]


@pytest.fixture
def asked_in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reached, "node_offset", lambda: None)
    reached.reached_inputs.cache_clear()
    yield
    reached.reached_inputs.cache_clear()


@pytest.mark.usefixtures("asked_in_python")
def test_without_knowledge_of_nodes_gradients_are_the_same() -> None:
    assert handles.node_offset() is not None
    assert reached.reached_inputs() is None
    x, w = torch.rand(3, 4, requires_grad=True), torch.rand(4, 5, requires_grad=True)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    compiled = adjoint.compile(function)
    for wanted in ([x], [w], [w, x]):
        expected = torch.autograd.grad(function(x, w), wanted)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, w), wanted), expected)
