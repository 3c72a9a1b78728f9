"""AIMNet2 with each module that it may end in, trained on energies, forces and stresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import (
    MARKS,
    Compilations,
    assert_trained_alike,
    package,
)
from tests.packages.structures import CUTOFF, SIZES, Boxes, boxes

pytestmark = MARKS

KINDS = torch.tensor([1, 6])
DISPERSION = {"a1": 0.5, "a2": 3.0, "s8": 0.8}


def outputs(*more: nn.Module) -> dict[str, nn.Module]:
    """The energy of atoms, their sum, and what else is to be added or predicted."""
    modules = package("aimnet.modules")
    mlp = {"activation_fn": nn.GELU(), "last_linear": True, "hidden": [4]}
    ends = [
        modules.Output(n_in=4, n_out=1, key_in="aim", key_out="energy", mlp=mlp),
        modules.AtomicShift("energy", "energy", dtype=torch.float64),
        modules.AtomicSum("energy", "energy"),
        *more,
    ]
    return {str(place): each for place, each in enumerate(ends)}


def end(name: str, **options: Any) -> Callable[[], list[nn.Module]]:
    return lambda: [getattr(package("aimnet.modules"), name)(**options)]


class DispersionOfElements(nn.Module):
    """What D3TS takes: two numbers for each atom."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Parameter(torch.rand(10, 2) + 0.5)

    def forward(self, structure: dict[str, Tensor]) -> dict[str, Tensor]:
        structure["disp_param"] = self.each[structure["numbers"]]
        return structure


# How a model ends, after the energy of its atoms.
ENDS: dict[str, Callable[[], list[nn.Module]]] = {
    "energy": list,
    "LRCoulomb": end("LRCoulomb", key_out="energy", rc=CUTOFF),
    "SRCoulomb": end("SRCoulomb", rc=CUTOFF),
    "SRCoulomb, cosine": end("SRCoulomb", rc=CUTOFF, envelope="cosine"),
    "D3TS": lambda: [DispersionOfElements(), package("aimnet.modules").D3TS(**DISPERSION)],
    "Dipole": end("Dipole", center_coord=True),
    "Quadrupole": end("Quadrupole"),
}

LEFT_OUT = {
    "DFTD3": "its forces come from a kernel without a second derivative",
    **dict.fromkeys(("AEVSV", "ConvSV", "Embedding"), "a part of every model"),
    **dict.fromkeys(("Output", "AtomicShift", "AtomicSum"), "a part of every model here"),
    "Forces": "around every model here",
}


def make(ends: Callable[[], list[nn.Module]] = list, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "aev": {"rc_s": CUTOFF, "nshifts_s": 3},
        "nfeature": 3,
        "d2features": True,
        "ncomb_v": 2,
        "hidden": ([4], [4]),
        "aim_size": 4,
        "outputs": outputs(*ends()),
    }
    model = package("aimnet.models").AIMNet2(**{**sizes, **options})
    nn.init.uniform_(model.outputs["1"].shifts.weight)
    made: nn.Module = model.double().train()
    return made


def predict(program: Any, count: int) -> dict[str, Tensor]:
    """Several molecules with as many atoms each, every pair of which interacts."""
    structure = boxes([count, count, count], periodic=False)
    given = {
        "coord": structure.positions.reshape(3, count, 3).clone(),
        "numbers": KINDS[structure.kinds].reshape(3, count),
        "charge": torch.tensor([0.0, 1.0, -1.0]),
        "mult": torch.tensor([1.0, 2.0, 1.0]),
    }
    found = program(given)
    names = ("energy", "forces", "charges", "dipole", "quadrupole", "spin_charges")
    return {name: found[name] for name in names if name in found}


def predict_periodic(program: Any, given: Boxes) -> dict[str, Tensor]:
    """As the package's calculator does it: a matrix of neighbours, and the strain of the box."""
    derivatives = package("aimnet.calculators.derivatives")
    atoms = len(given.kinds)
    # One atom more stands for nothing; rows of neighbours are filled up with it.
    rows: list[list[int]] = [[] for _ in range(atoms + 1)]
    shifts: list[list[Tensor]] = [[] for _ in rows]
    for (first, second), image in zip(given.pairs.T.tolist(), given.images, strict=True):
        rows[first].append(second)
        shifts[first].append(image)
    longest = max(map(len, rows))
    nothing = torch.zeros(3)
    structure = {
        "coord": torch.cat([given.positions, nothing[None]]),
        "numbers": torch.cat([KINDS[given.kinds], torch.zeros(1, dtype=torch.int64)]),
        "charge": torch.zeros(len(given.cells)),
        "mol_idx": torch.cat([given.batch, given.batch[-1:]]),
        "cell": given.cells.clone(),
        "nbmat": torch.tensor([row + [atoms] * (longest - len(row)) for row in rows]),
        "shifts": torch.stack(
            [torch.stack(each + [nothing] * (longest - len(each))) for each in shifts]
        ),
    }
    structure, saved, _ = derivatives.set_grad_tensors(structure, forces=True, stress=True)
    found = derivatives.get_derivatives(
        program(structure), forces=True, stress=True, saved_for_grad=saved, create_graph=True
    )
    return {name: found[name] for name in ("energy", "forces", "stress")}


def test_all_models_are_here() -> None:
    modules = package("aimnet.modules")
    found = {name for name, each in vars(modules).items() if isinstance(each, type)}
    assert found == {*LEFT_OUT, "D3TS", "Dipole", "LRCoulomb", "Quadrupole", "SRCoulomb"}
    models = package("aimnet.models")
    classes = {name for name, each in vars(models).items() if isinstance(each, type)}
    assert {name for name in classes if issubclass(getattr(models, name), nn.Module)} == {
        "AIMNet2",
        "AIMNet2Base",
    }


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str, compiled: Compilations) -> None:
    model = package("aimnet.modules").Forces(make(ENDS[name])).train()
    assert_trained_alike(model, predict, [3, 5], compiled)


@pytest.mark.parametrize(
    "options",
    [{"num_charge_channels": 2}, {"d2features": False}, {"hidden": ([4], [4], [4])}],
    ids=["open shells", "one feature", "another pass"],
)
def test_options(options: dict[str, Any], compiled: Compilations) -> None:
    model = package("aimnet.modules").Forces(make(**options)).train()
    assert_trained_alike(model, predict, [3, 5], compiled)


def test_stresses(compiled: Compilations) -> None:
    structures = [boxes(each) for each in SIZES]
    assert_trained_alike(make(), predict_periodic, structures, compiled)
