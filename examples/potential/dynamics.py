"""Molecular dynamics of ASE with a potential that was exported: no compiler, no model code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator, all_changes
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet
from ase.neighborlist import neighbor_list

import adjoint

CUTOFF = 5.0

# The kind of each element, as in training.
KINDS = {"Cu": 0, "Ni": 1}


class ExportedPotential(Calculator):
    """A calculator of ASE whose energies and forces an exported program computes."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 - ASE declares it so

    def __init__(self, path: str) -> None:
        super().__init__()
        self.program = adjoint.load(path)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Set the energy and the forces of the atoms."""
        super().calculate(atoms, properties, system_changes)
        one, other, images = neighbor_list("ijS", self.atoms, CUTOFF)
        shifts = images @ np.asarray(self.atoms.cell)
        energy, forces = self.program(
            torch.from_numpy(self.atoms.positions),
            torch.tensor([KINDS[name] for name in self.atoms.symbols]),
            torch.from_numpy(np.stack([one, other])),
            torch.from_numpy(np.ascontiguousarray(shifts, dtype=np.float64)),
        )
        self.results: dict[str, Any] = {"energy": energy.item(), "forces": forces.numpy()}


def crystal(repeats: int = 2) -> Atoms:
    """A periodic alloy, shaken."""
    from ase.build import bulk

    atoms = bulk("Cu", "sc", a=2.8).repeat(repeats)
    atoms.symbols[1::2] = "Ni"
    atoms.rattle(0.05, seed=3)
    return atoms


def run(path: str, steps: int, timestep: float = 0.5, kelvin: float = 100.0) -> list[float]:
    """The total energy after each step, in eV."""
    atoms = crystal(3)
    atoms.calc = ExportedPotential(path)
    MaxwellBoltzmannDistribution(atoms, temperature_K=kelvin, rng=np.random.default_rng(5))
    dynamics = VelocityVerlet(atoms, timestep * units.fs)
    energies: list[float] = [atoms.get_total_energy()]
    for _ in range(steps):
        dynamics.run(1)
        energies.append(atoms.get_total_energy())
    return energies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="a potential that train.py has exported")
    parser.add_argument("--steps", type=int, default=100)
    parsed = parser.parse_args()
    energies = run(parsed.file, parsed.steps)
    for step in range(0, len(energies), max(1, len(energies) // 10)):
        print(f"step {step:5}: total energy {energies[step]:.6f} eV")


if __name__ == "__main__":
    main()
