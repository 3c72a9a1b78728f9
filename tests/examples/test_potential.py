"""An interatomic potential from training to molecular dynamics: `examples/potential/`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import adjoint
from tests.exports import WITHOUT_LLVM, in_another_process

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "potential"


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"potential_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRAINING: Any = imported("train")


@pytest.fixture(scope="module")
def trained() -> Any:
    return TRAINING.train(4, compiled=False)


@pytest.fixture(scope="module")
def path(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = TRAINING.export(trained, tmp_path_factory.mktemp("potential") / "file.adjoint")
    return file


def cluster(count: int) -> tuple[torch.Tensor, ...]:
    made: tuple[torch.Tensor, ...] = TRAINING.cluster(count, torch.Generator().manual_seed(count))
    return made[:4]


def test_training_learns() -> None:
    torch.manual_seed(0)
    losses: list[float] = []
    for steps in (1, 40):
        potential = TRAINING.train(steps, compiled=False)
        positions, kinds, edges, shifts = cluster(10)
        energy, forces = TRAINING.EnergyAndForces(potential)(positions, kinds, edges, shifts)
        expected, pulls = TRAINING.morse(positions, kinds)
        error = ((energy - expected) / 10).square() + (forces - pulls).square().mean()
        losses.append(error.item())
    assert losses[1] < 0.5 * losses[0]


@pytest.mark.parametrize("count", [2, 9, 30, 100])
def test_energies_and_forces_are_those_of_eager(trained: Any, path: Path, count: int) -> None:
    args = cluster(count)
    energy, forces = adjoint.load(path)(*args)
    expected, pulls = TRAINING.EnergyAndForces(trained)(*args)
    torch.testing.assert_close(energy, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(forces, pulls, rtol=1e-12, atol=1e-13)


def test_atoms_without_neighbours_have_no_forces(trained: Any, path: Path) -> None:
    positions = torch.tensor([[0.0, 0, 0], [90, 0, 0]], dtype=torch.float64)
    kinds = torch.tensor([0, 1])
    args = (positions, kinds, torch.empty(2, 0, dtype=torch.int64), positions[:0])
    energy, forces = adjoint.load(path)(*args)
    expected, _ = TRAINING.EnergyAndForces(trained)(*args)
    torch.testing.assert_close(energy, expected)
    assert not forces.any()


def test_lists_that_do_not_belong_together_are_refused(path: Path) -> None:
    positions, kinds, edges, shifts = cluster(9)
    program = adjoint.load(path)
    with pytest.raises(adjoint.LoadError, match="sizes do not fit"):
        program(positions, kinds, edges, shifts[:-1])
    with pytest.raises(IndexError):
        program(positions, kinds, edges + 7, shifts)
    with pytest.raises(IndexError):
        program(positions, kinds[:3], edges, shifts)


STARTING = """
import json, time, torch
begun = time.process_time()
import adjoint
program = adjoint.load(sys.argv[1])
tensors = [torch.tensor(each, dtype=kind) for each, kind in zip(
    json.loads(sys.argv[2]), (torch.float64, torch.int64, torch.int64, torch.float64))]
energy, forces = program(*tensors)
seconds = time.process_time() - begun
print(json.dumps({
    "energy": energy.item(), "forces": forces.tolist(), "seconds": seconds,
    "modules": [name for name in ("llvmlite", "torch._dynamo") if name in sys.modules],
}))
"""


def test_it_starts_at_once_without_llvm(trained: Any, path: Path) -> None:
    args = cluster(12)
    found = in_another_process(STARTING, path, json.dumps([each.tolist() for each in args]))
    expected, pulls = TRAINING.EnergyAndForces(trained)(*args)
    assert found["modules"] == []
    assert abs(found["energy"] - expected.item()) < 1e-12
    forces = torch.tensor(found["forces"], dtype=torch.float64)
    torch.testing.assert_close(forces, pulls, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_it_starts_within_a_second(path: Path) -> None:
    """Of the processor's time; only a machine with nothing else to do keeps its caches to it."""
    args = json.dumps([each.tolist() for each in cluster(12)])
    assert min(in_another_process(STARTING, path, args)["seconds"] for _ in range(3)) < 1.0


DYNAMICS = """
import json
sys.path.insert(0, sys.argv[2])
import numpy, torch, dynamics
atoms = dynamics.crystal(2)
atoms.calc = dynamics.ExportedPotential(sys.argv[1])
from ase.neighborlist import neighbor_list
one, other, images = neighbor_list("ijS", atoms, dynamics.CUTOFF)
energies = dynamics.run(sys.argv[1], 40)
print(json.dumps({
    "args": [atoms.positions.tolist(), [dynamics.KINDS[name] for name in atoms.symbols],
             numpy.stack([one, other]).tolist(), (images @ numpy.asarray(atoms.cell)).tolist()],
    "energy": atoms.get_potential_energy(), "forces": atoms.get_forces().tolist(),
    "energies": energies, "llvm": "llvmlite" in sys.modules,
}))
"""


def test_it_drives_molecular_dynamics(trained: Any, path: Path) -> None:
    pytest.importorskip("ase", reason="molecular dynamics is that of ase")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_LLVM + DYNAMICS, path, EXAMPLE],
        capture_output=True,
        text=True,
        cwd=EXAMPLE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["llvm"]
    kinds = (torch.float64, torch.int64, torch.int64, torch.float64)
    args = [torch.tensor(each, dtype=k) for each, k in zip(found["args"], kinds, strict=True)]
    energy, forces = TRAINING.EnergyAndForces(trained)(*args)
    assert abs(found["energy"] - energy.item()) < 1e-12
    theirs = torch.tensor(found["forces"], dtype=torch.float64)
    torch.testing.assert_close(theirs, forces, rtol=1e-12, atol=1e-13)
    # Forces are the slope of the energy: velocity Verlet keeps the total energy.
    energies = found["energies"]
    assert max(energies) - min(energies) < 1e-4 * len(energies)
