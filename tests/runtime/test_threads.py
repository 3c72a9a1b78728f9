"""Threads that compile, differentiate and run the same programs, and others, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

import adjoint
from tests.parity import leaf

grad = torch.autograd.grad


def at_once(work: Callable[[int], None], count: int = 4) -> None:
    """Run `work(place)` in `count` threads, and raise what one of them raises."""
    start = threading.Barrier(count)

    def run(place: int) -> None:
        start.wait()
        work(place)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(run, range(count)))


def test_second_derivatives_of_one_compiled_module_for_other_sizes() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    weight = module[0].weight
    compiled = torch.compile(module, backend="adjoint")

    def second(run: Any, x: Tensor) -> Any:
        (force,) = grad(run(x).sum(), x, create_graph=True)
        return grad(force.square().sum(), weight)

    inputs = [leaf(3 + place, 2) for place in range(4)]
    wanted = [second(module, x) for x in inputs]

    def work(place: int) -> None:
        for _ in range(3):
            torch.testing.assert_close(second(compiled, inputs[place]), wanted[place])

    at_once(work)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0] * 2


def test_captures_beside_each_other_and_beside_eager_code() -> None:
    def work(place: int) -> None:
        x = torch.linspace(0, 1, 2 + place, dtype=torch.float64)
        applied: Any = Doubled
        for power in range(2, 5):
            if place % 2:
                found = adjoint.hessian(lambda x, power=power: (x**power).sum())(x)
                wanted = torch.diag(power * (power - 1) * x ** (power - 2))
                torch.testing.assert_close(found, wanted)
            for _ in range(50):
                z = x.clone().requires_grad_()
                torch.testing.assert_close(grad(applied.apply(z).sum(), z)[0], x * 0 + 2)
                assert not torch.compiler.is_dynamo_compiling()

    at_once(work)
