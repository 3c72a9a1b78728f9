"""An interatomic potential learned from forces alone: small clusters with a Morse potential.

The network is the one that `adjoint bench` measures. Its forces are minus the gradient of its
energy, so training differentiates twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adjoint.bench.workloads import Potential
from demo.training import Batch, Lesson, Network

STEPS = 300
ATOMS = 13
CLUSTERS = 16
REST = 2.2
STEEPNESS = 1.4
DEPTH = ((1.0, 0.7), (0.7, 0.4))
HEAT = 0.12


def morse_energy(positions: Tensor, species: Tensor) -> Tensor:
    """D ((1 - exp(-a (r - r0)))^2 - 1) of all pairs in clusters of shape (..., atoms, 3)."""
    first, second = torch.triu_indices(ATOMS, ATOMS, 1)
    r = torch.linalg.vector_norm(positions[..., first, :] - positions[..., second, :], dim=-1)
    depth = torch.tensor(DEPTH, dtype=r.dtype)[species[first], species[second]]
    return (depth * ((1 - torch.exp(-STEEPNESS * (r - REST))) ** 2 - 1)).sum()


def morse_forces(positions: Tensor, species: Tensor) -> Tensor:
    moved = positions.detach().requires_grad_()
    (slope,) = torch.autograd.grad(morse_energy(moved, species), moved)
    return -slope


def icosahedron() -> Tensor:
    """An atom and the twelve around it, at distance REST."""
    golden = (1 + math.sqrt(5)) / 2
    corners = [
        torch.tensor([0.0, a, b * golden]).roll(turn)
        for turn in range(3)
        for a in (-1.0, 1.0)
        for b in (-1.0, 1.0)
    ]
    ring = torch.stack(corners)
    return torch.cat([torch.zeros(1, 3), ring * (REST / ring[0].norm())])


class Clusters:
    """Shaken clusters of two species, their edges, and forces in units of their usual size."""

    def __init__(self) -> None:
        self.species = torch.arange(ATOMS) % 2
        pairs = (1 - torch.eye(ATOMS)).nonzero()
        every = (pairs[None] + ATOMS * torch.arange(CLUSTERS)[:, None, None]).flatten(0, 1)
        self.to, self.source = every.t().contiguous()
        self.unit = self.forces(self.positions(0)).square().mean().sqrt()

    def positions(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        noise = torch.randn(CLUSTERS, ATOMS, 3, generator=generator)
        return icosahedron() + HEAT * noise

    def forces(self, positions: Tensor) -> Tensor:
        return morse_forces(positions, self.species)

    def batch(self, step: int) -> Batch:
        """New clusters at every step: species, positions, edges and forces."""
        positions = self.positions(step)
        forces = self.forces(positions) / self.unit
        species = self.species.repeat(CLUSTERS)
        return species, positions.flatten(0, 1), self.to, self.source, forces.flatten(0, 1)


def force_loss(
    energy: Network, species: Tensor, positions: Tensor, to: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """The part of the forces that the network does not explain: 1 if it says nothing."""
    moved = positions.detach().requires_grad_()
    (slope,) = torch.autograd.grad(energy(species, moved, to, source), moved, create_graph=True)
    return (-slope - target).square().mean()


def lesson(steps: int) -> Lesson:
    torch.manual_seed(0)
    return Lesson("Morse forces", Potential(64, 2), force_loss, Clusters().batch, steps, rate=5e-3)


def force_error(model: nn.Module) -> float:
    """The loss on clusters that no step has seen; its square root is a relative error."""
    return math.sqrt(force_loss(model, *Clusters().batch(1_000_000)).item())
