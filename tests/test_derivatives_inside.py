"""Derivatives that a compiled function takes itself, by `torch.autograd.grad` or `backward`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.parity import Route, check


class Energy(nn.Module):
    """An energy, by which subclasses define what they return."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def energy(self, x: Tensor) -> Tensor:
        total: Tensor = self.net(x).sum()
        return total


class Hamiltonian(Energy):
    def forward(self, x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(self.energy(x), x, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)


class Stress(Energy):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
        energy = self.energy(x + x @ (strain + strain.T) / 2)
        slope, stress = torch.autograd.grad(energy, [x, strain], create_graph=True)
        return energy, -slope, stress


class Residual(Energy):
    def forward(self, x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(self.energy(x), x, create_graph=True)
        (second,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        return (second[:, 0] + slope[:, 1]).square()


class Adapted(Energy):
    def forward(self, x: Tensor) -> Tensor:
        weights: dict[str, Tensor] = dict(self.net.named_parameters())
        loss = torch.func.functional_call(self.net, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        pairs = zip(weights.items(), slopes, strict=True)
        moved = {name: weight - 0.1 * slope for (name, weight), slope in pairs}
        after: Tensor = torch.func.functional_call(self.net, moved, (x,))
        return after


class Unused(Energy):
    def forward(self, x: Tensor) -> Tensor:
        other = x * 2
        slopes: Sequence[Tensor | None] = torch.autograd.grad(
            self.energy(x), [x, other], create_graph=True, allow_unused=True
        )
        assert slopes[0] is not None
        return slopes[0] if slopes[1] is None else slopes[1]


MODULES = [Hamiltonian, Stress, Residual, Adapted, Unused]


@pytest.mark.parametrize("make", MODULES)
def test_results_and_their_derivatives_are_those_of_eager(make: Callable[[], Energy]) -> None:
    counters.clear()
    order = 2 if make is Hamiltonian else 1

    def inputs() -> Any:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_()

    if make is Stress:
        # Dynamo breaks the graph where a new leaf is made, so that `fullgraph` is no route.
        module, x = make(), inputs()
        compiled = torch.compile(module, backend="adjoint")
        for mine, other in zip(compiled(x), module(x), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    else:
        check(make(), inputs, Route.DYNAMO, order=order)
    assert not any("trace_autograd_ops" in reason for reason in counters["graph_break"])


def test_other_backends_are_left_alone() -> None:
    module, x = Hamiltonian(), torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    torch.compile(module, backend="adjoint")(x)
    torch._dynamo.reset()
    counters.clear()
    torch.compile(module, backend="eager")(x)
    assert any("trace_autograd_ops" in reason for reason in counters["graph_break"])
