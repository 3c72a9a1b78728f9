"""Burgers' equation u_t + u u_x = nu u_xx on [-1, 1], learned from its residual alone.

The wave -sin(pi x) steepens in the middle. The network multiplies something that vanishes at the
start and at both ends, so that every network satisfies the initial and boundary conditions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adjoint.bench.problems import perceptron
from demo.training import Batch, Lesson, Network

STEPS = 500
VISCOSITY = 0.05
POINTS = 2048


class Wave(nn.Module):
    """u at points (x, t)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.net = perceptron([2, *[width] * layers, 1], nn.Tanh)

    def forward(self, points: Tensor) -> Tensor:
        x, t = points[:, 0], points[:, 1]
        correction: Tensor = self.net(points)[:, 0]
        return -torch.sin(math.pi * x) + t * (1 - x**2) * correction


def residual_loss(u: Network, points: Tensor) -> Tensor:
    """How far u is from solving the equation; two derivatives of u, then one of those."""
    point = points.detach().requires_grad_()
    value = u(point)
    (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True)
    (curvature,) = torch.autograd.grad(slope[:, 0].sum(), point, create_graph=True)
    residual: Tensor = slope[:, 1] + value * slope[:, 0] - VISCOSITY * curvature[:, 0]
    return residual.square().mean()


def random_points(step: int) -> Batch:
    """Points (x, t), new ones at every step."""
    generator = torch.Generator().manual_seed(step)
    both = torch.rand(POINTS, 2, generator=generator)
    return (both * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0]),)


def lesson(steps: int) -> Lesson:
    torch.manual_seed(0)
    return Lesson("Burgers PINN", Wave(64, 3), residual_loss, random_points, steps, rate=1e-2)


def exact(points: Tensor) -> Tensor:
    """Hopf and Cole: u = -E[s(y)] with s = sin(pi y), y = x - sqrt(4 nu t) z, z of density
    exp(-z^2) exp(-cos(pi y) / (2 pi nu)) up to a factor. The trapezoidal rule is exact for such
    integrals to rounding, as they decay fast and smoothly at both ends.
    """
    x, t = points[:, 0, None], points[:, 1, None]
    z = torch.linspace(-7, 7, 2001, dtype=points.dtype)
    y = x - torch.sqrt(4 * VISCOSITY * t) * z
    density = torch.exp(-(z**2) - torch.cos(math.pi * y) / (2 * math.pi * VISCOSITY))
    return -(torch.sin(math.pi * y) * density).sum(1) / density.sum(1)


def line(t: float, count: int = 121) -> Tensor:
    """Points across the wave at one time, in float64."""
    x = torch.linspace(-1, 1, count, dtype=torch.float64)
    return torch.stack([x, torch.full_like(x, t)], dim=1)


def solution_error(u: nn.Module) -> float:
    """The relative error of u against the exact solution, over all times."""
    points = torch.cat([line(t) for t in torch.linspace(0, 1, 21).tolist()])
    right = exact(points)
    with torch.no_grad():
        found = u(points.float()).double()
    return math.sqrt((found - right).square().sum().item() / right.square().sum().item())
