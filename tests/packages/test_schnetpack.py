"""Every representation of SchNetPack, with each module that predicts something from it."""

from __future__ import annotations

import typing
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

WIDTH = 4
KINDS = torch.tensor([1, 6])

REPRESENTATIONS: dict[str, dict[str, Any]] = {
    "SchNet": {},
    "PaiNN": {},
    "FieldSchNet": {"external_fields": ["electric_field"]},
    "SO3net": {"lmax": 1, "return_vector_representation": True},
}

LEFT_OUT = {
    "representation": {"NuclearMagneticMomentEmbedding": "a part of FieldSchNet"}
    | dict.fromkeys(("PaiNNInteraction", "PaiNNMixing"), "a part of PaiNN")
    | {"SchNetInteraction": "a part of SchNet"},
    "atomistic": {},
}

ATOMISTIC = {
    "Aggregation",
    "Atomwise",
    "CoulombPotential",
    "DampedCoulombPotential",
    "DipoleMoment",
    "EnergyCoulomb",
    "EnergyEwald",
    "Forces",
    "Polarizability",
    "Response",
    "StaticExternalFields",
    "Strain",
    "ZBLRepulsionEnergy",
}


def schnetpack() -> Any:
    # The package imports this name from a module of torch that does not have it any more.
    loader = torch.utils.data.dataloader
    if not hasattr(loader, "T_co"):
        loader.T_co = typing.TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]
    return package("schnetpack")


def representation(name: str, **options: Any) -> nn.Module:
    """With random weights; bases can be made in single precision only."""
    spk = schnetpack()
    torch.set_default_dtype(torch.float32)
    made: nn.Module = getattr(spk.representation, name)(
        n_atom_basis=WIDTH,
        n_interactions=options.pop("n_interactions", 1),
        radial_basis=spk.nn.GaussianRBF(n_rbf=4, cutoff=CUTOFF),
        cutoff_fn=spk.nn.CosineCutoff(CUTOFF),
        **{**REPRESENTATIONS[name], **options},
    )
    torch.set_default_dtype(torch.float64)
    return made


def potential(body: nn.Module, outputs: list[nn.Module], strain: bool = True) -> nn.Module:
    """A model as the package puts it together."""
    spk = schnetpack()
    fields = getattr(body, "external_fields", [])
    inputs = [spk.atomistic.Strain()] if strain else []
    inputs += [spk.atomistic.PairwiseDistances(), spk.atomistic.StaticExternalFields(fields)]
    model: nn.Module = spk.model.NeuralNetworkPotential(body, inputs, outputs)
    return model.double().train()


def energy(**options: Any) -> nn.Module:
    module: nn.Module = schnetpack().atomistic.Atomwise(WIDTH, output_key="energy", **options)
    return module


def forces(**options: Any) -> nn.Module:
    module: nn.Module = schnetpack().atomistic.Forces(calc_stress=True, **options)
    return module


def charges() -> nn.Module:
    module: nn.Module = schnetpack().atomistic.DipoleMoment(WIDTH, return_charges=True)
    return module


def repulsion() -> nn.Module:
    spk = schnetpack()
    outputs = [
        energy(),
        spk.atomistic.ZBLRepulsionEnergy(
            "eV", "Ang", "repulsion", cutoff_fn=spk.nn.CosineCutoff(CUTOFF)
        ),
        spk.atomistic.Aggregation(["energy", "repulsion"], "total"),
        forces(energy_key="total"),
    ]
    return potential(representation("SchNet"), outputs)


def coulomb(damped: bool) -> nn.Module:
    spk = schnetpack()
    switch = spk.nn.SwitchFunction(0.5, CUTOFF)
    each = (
        spk.atomistic.DampedCoulombPotential(switch) if damped else spk.atomistic.CoulombPotential()
    )
    outputs = [
        charges(),
        spk.atomistic.EnergyCoulomb(
            "eV", "Ang", each, "energy", use_neighbors_lr=False, cutoff=CUTOFF
        ),
        forces(),
    ]
    return potential(representation("PaiNN"), outputs)


def ewald() -> nn.Module:
    spk = schnetpack()
    summed = spk.atomistic.EnergyEwald(0.3, 2, "eV", "Ang", "energy", use_neighbors_lr=False)
    return potential(representation("PaiNN"), [charges(), summed, forces()])


def polarizability(name: str) -> nn.Module:
    spk = schnetpack()
    dipole = spk.atomistic.DipoleMoment(WIDTH, use_vector_representation=True)
    outputs = [energy(), forces(), dipole, spk.atomistic.Polarizability(WIDTH)]
    return potential(representation(name), outputs)


def response(*properties: str) -> nn.Module:
    """Derivatives of the energy by fields, positions and magnetic moments, of up to third order."""
    spk = schnetpack()
    respond = spk.atomistic.Response("energy", list(properties))
    body = representation("FieldSchNet", response_properties=list(properties))
    return potential(body, [energy(), respond], strain=False)


OUTPUTS: dict[str, Callable[[], nn.Module]] = {
    "repulsion": repulsion,
    "coulomb": lambda: coulomb(damped=False),
    "damped coulomb": lambda: coulomb(damped=True),
    "ewald": ewald,
    "polarizability by PaiNN": lambda: polarizability("PaiNN"),
    "polarizability by SO3net": lambda: polarizability("SO3net"),
    "response to electric fields": lambda: response(
        "forces", "dipole_moment", "polarizability", "dipole_derivatives"
    ),
    "response to magnetic fields": lambda: response("forces", "shielding"),
    "averages": lambda: potential(
        representation("SchNet"),
        [energy(aggregation_mode="avg", per_atom_output_key="each"), forces()],
    ),
}


def predict(program: Any, given: Boxes) -> dict[str, Tensor]:
    first, second = given.pairs
    structure = {
        "_atomic_numbers": KINDS[given.kinds],
        "_positions": given.positions.clone(),
        "_cell": given.cells.clone(),
        "_idx_m": given.batch,
        "_idx_i": first,
        "_idx_j": second,
        "_offsets": given.shifts(),
        "_n_atoms": given.counts,
        # Without a field these models predict no dipoles.
        "electric_field": torch.linspace(-1, 1, 3 * len(given.cells)).reshape(-1, 3),
        "magnetic_field": torch.linspace(1, 2, 3 * len(given.cells)).reshape(-1, 3),
        "nuclear_magnetic_moments": given.positions.clone() / 3,
    }
    found: dict[str, Tensor] = program(structure)
    return found


def structures() -> list[Boxes]:
    return [boxes(each) for each in SIZES]


def test_all_models_are_here() -> None:
    spk = schnetpack()
    found = {name for name in vars(spk.representation) if name[0].isupper()}
    assert {*spk.representation.schnet.__all__} <= found
    exported: set[str] = set()
    for module in ("schnet", "painn", "field_schnet", "so3net"):
        exported |= {*getattr(spk.representation, module).__all__}
    assert exported == {*REPRESENTATIONS, *LEFT_OUT["representation"]}
    exported = set()
    for module in (
        "aggregation",
        "atomwise",
        "electrostatic",
        "external_fields",
        "nuclear_repulsion",
        "response",
    ):
        exported |= {*getattr(spk.atomistic, module).__all__}
    assert exported == ATOMISTIC


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_representations(name: str, compiled: Compilations) -> None:
    torch.manual_seed(0)
    model = potential(representation(name, n_interactions=2), [energy(), forces()])
    assert_trained_alike(model, predict, structures(), compiled)


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str, compiled: Compilations) -> None:
    torch.manual_seed(0)
    assert_trained_alike(OUTPUTS[name](), predict, structures(), compiled)
