"""Train an interatomic potential on energies and forces, and export it to a file.

The model is plain torch: atoms exchange messages with their neighbours, and the energy is the sum
of what each atom makes of them.  The data are clusters of two kinds of atoms with a Morse
potential, of different sizes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import adjoint

CUTOFF = 5.0
KINDS = 2

# Morse: depth in eV, width in 1/Angstrom, distance in Angstrom, of each pair of kinds.
DEPTH = torch.tensor([[0.34, 0.28], [0.28, 0.22]], dtype=torch.float64)
WIDTH = torch.tensor([[1.36, 1.42], [1.42, 1.50]], dtype=torch.float64)
REST = torch.tensor([[2.87, 2.75], [2.75, 2.62]], dtype=torch.float64)


class Potential(nn.Module):
    """The energy of each atom, of its neighbours and of what these know of theirs."""

    centers: Tensor

    def __init__(self, width: int = 24, basis: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(KINDS, width)
        self.first = nn.Sequential(nn.Linear(basis, width), nn.SiLU(), nn.Linear(width, width))
        self.second = nn.Sequential(nn.Linear(basis, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centers", torch.linspace(1.0, CUTOFF, basis))

    def forward(self, positions: Tensor, kinds: Tensor, edges: Tensor, shifts: Tensor) -> Tensor:
        """`edges`: pairs of neighbours; `shifts`: which periodic image of the second it is."""
        one, other = edges[0], edges[1]
        vectors = positions[other] + shifts - positions[one]
        distance = vectors.square().sum(-1, keepdim=True).sqrt()
        # Smooth: an atom that leaves the cutoff does so without a force.
        envelope = 0.5 * (1 + torch.cos(math.pi * distance / CUTOFF)) * (distance < CUTOFF)
        basis = torch.exp(-4 * (distance - self.centers) ** 2) * envelope
        atoms = self.embed(kinds)
        for layer in (self.first, self.second):
            message = layer(basis) * atoms[other] * envelope
            gathered = torch.zeros_like(atoms).index_add(0, one, message)
            atoms = atoms + self.update(gathered)
        energies: Tensor = self.out(atoms).squeeze(-1)
        return energies


class EnergyAndForces(nn.Module):
    """What molecular dynamics asks for: the derivative is part of the program."""

    def __init__(self, potential: Potential) -> None:
        super().__init__()
        self.potential = potential

    def forward(
        self, positions: Tensor, kinds: Tensor, edges: Tensor, shifts: Tensor
    ) -> tuple[Tensor, Tensor]:
        moved = positions.detach().requires_grad_()
        energy = self.potential(moved, kinds, edges, shifts).sum()
        (slope,) = torch.autograd.grad(energy, moved)
        return energy.detach(), -slope


def neighbours(positions: Tensor) -> Tensor:
    """All pairs of different atoms within the cutoff, of a cluster without periodic images."""
    distance = (positions[:, None] - positions[None]).square().sum(-1).sqrt()
    distance.fill_diagonal_(torch.inf)
    return (distance < CUTOFF).nonzero().t().contiguous()


def morse(positions: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """The energy of a cluster, and its forces."""
    moved = positions.detach().requires_grad_()
    one, other = torch.triu_indices(len(kinds), len(kinds), 1)
    distance = (moved[other] - moved[one]).square().sum(-1).sqrt()
    depth, width, rest = (table[kinds[one], kinds[other]] for table in (DEPTH, WIDTH, REST))
    energy = (depth * ((1 - torch.exp(-width * (distance - rest))) ** 2 - 1)).sum()
    (slope,) = torch.autograd.grad(energy, moved)
    return energy.detach(), -slope


Cluster = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def cluster(count: int, generator: torch.Generator) -> Cluster:
    """Positions, kinds, edges, shifts, energy and forces of a shaken piece of a lattice."""
    side = math.ceil(count ** (1 / 3))
    grid = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 3)[:count]
    noise = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    positions = 2.8 * grid + 0.15 * noise
    kinds = torch.randint(KINDS, (count,), generator=generator)
    edges = neighbours(positions)
    shifts = torch.zeros(edges.shape[1], 3, dtype=torch.float64)
    return positions, kinds, edges, shifts, *morse(positions, kinds)


def train(steps: int, compiled: bool = True, seed: int = 0) -> Potential:
    """A potential that was trained on energies and forces of clusters of several sizes."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    potential = Potential().double()
    model = torch.compile(potential, backend="adjoint", dynamic=True) if compiled else potential
    optimizer = torch.optim.Adam(potential.parameters(), lr=3e-3)
    for step in range(steps):
        positions, kinds, edges, shifts, energy, forces = cluster(8 + step % 5, generator)
        positions.requires_grad_()
        found = model(positions, kinds, edges, shifts).sum()
        (slope,) = torch.autograd.grad(found, positions, create_graph=True)
        per_atom = (found - energy) / len(kinds)
        loss = per_atom.square() + (slope + forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4}: loss {loss.item():.5f}")
    return potential


def export(potential: Potential, path: str | Path) -> Path:
    """Write the potential to a file, for any number of atoms and neighbours."""
    positions, kinds, edges, shifts, _, _ = cluster(9, torch.Generator().manual_seed(1))
    return adjoint.export(
        EnergyAndForces(potential),
        (positions, kinds, edges, shifts),
        path,
        orders=0,
        dynamic={"positions": [0], "kinds": [0], "edges": [1], "shifts": [0]},
        cpus=("x86-64-v2", "x86-64-v3"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="where to write the potential")
    parser.add_argument("--steps", type=int, default=300)
    parsed = parser.parse_args()
    print(f"written to {export(train(parsed.steps), parsed.file)}")


if __name__ == "__main__":
    main()
