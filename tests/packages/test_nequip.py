"""Every model builder of NequIP, trained on energies, forces, virials and stresses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import MARKS, Compilations, assert_trained_alike, package
from tests.packages.structures import CUTOFF, SIZES, Boxes, boxes

pytestmark = MARKS

NAMES = ("energy", "forces", "virial", "stress")

SMALL: dict[str, Any] = {
    "num_layers": 1,
    "l_max": 1,
    "num_features": 2,
    "radial_mlp_width": 4,
    "num_bessels": 3,
}
IRREPS = {
    "irreps_edge_sh": "1x0e + 1x1o",
    "type_embed_num_features": 2,
    "feature_irreps_hidden": ["2x0e + 2x1o", "2x0e"],
    "radial_mlp_depth": [1, 1],
    "radial_mlp_width": [4, 4],
    "num_bessels": 3,
}

# Builder and arguments.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "NequIPGNNModel": ("NequIPGNNModel", {**SMALL, "num_layers": 2}),
    "without parity": ("NequIPGNNModel", {**SMALL, "parity": False, "l_max": 2}),
    "all is trained": (
        "NequIPGNNModel",
        {
            **SMALL,
            "bessel_trainable": True,
            "per_type_energy_scales_trainable": True,
            "per_type_energy_shifts_trainable": True,
            "readout_mlp_hidden_layers_depth": 1,
        },
    ),
    "cutoffs of pairs": (
        "NequIPGNNModel",
        {**SMALL, "per_edge_type_cutoff": {"H": 2.0, "C": {"H": 2.2, "C": CUTOFF}}},
    ),
    "pair potential": (
        "NequIPGNNModel",
        {
            **SMALL,
            "pair_potential": {
                "_target_": "nequip.nn.pair_potential.ZBL",
                "units": "metal",
                "chemical_species": ["H", "C"],
            },
        },
    ),
    "PresetNequIPGNNModel": ("PresetNequIPGNNModel", {"preset": "S", **SMALL}),
    "FullNequIPGNNModel": ("FullNequIPGNNModel", IRREPS),
    "residual": ("FullNequIPGNNModel", {**IRREPS, "convnet_resnet": True}),
    "ZBLPairPotential": (
        "ZBLPairPotential",
        {"units": "metal", "chemical_species": ["H", "C"]},
    ),
}

LEFT_OUT = {
    "ModelFromCheckpoint": "reads a model that one of the builders made",
    "ModelFromPackage": "reads a model that one of the builders made",
    "ModelTypeNamesFromPackage": "reads names",
    "MuonParamGroups": "groups of parameters",
    "model_builder": "a decorator",
    "modify": "changes a model that one of the builders made",
    "override_model_compile_mode": "a setting",
}


class Scaled(nn.Module):
    """A potential that has nothing to train, in units that have."""

    def __init__(self, potential: nn.Module) -> None:
        super().__init__()
        self.potential = potential
        self.unit = nn.Parameter(torch.tensor(1.25))

    def forward(self, structure: dict[str, Tensor]) -> dict[str, Tensor]:
        scaled = {name: structure[name] * self.unit for name in ("pos", "cell")}
        found: dict[str, Tensor] = self.potential({**structure, **scaled})
        return found


def make(name: str, **options: Any) -> nn.Module:
    """The model with random weights."""
    package("nequip.utils.global_state").set_global_state()
    builder, arguments = MODELS[name]
    model: nn.Module = getattr(package("nequip.model"), builder)(
        seed=0,
        model_dtype="float64",
        r_max=CUTOFF,
        type_names=["H", "C"],
        **({} if builder == "ZBLPairPotential" else SCALES),
        **{**arguments, **options},
    )
    torch.set_default_dtype(torch.float64)
    return (model if any(True for _ in model.parameters()) else Scaled(model)).train()


SCALES = {
    "avg_num_neighbors": 6.0,
    "per_type_energy_scales": 1.5,
    "per_type_energy_shifts": {"H": 0.25, "C": -0.5},
}


def predict(program: Any, given: Boxes) -> dict[str, Tensor]:
    structure = {
        "pos": given.positions.clone(),
        "atom_types": given.kinds,
        "edge_index": given.pairs,
        "edge_cell_shift": given.images,
        "cell": given.cells,
        "batch": given.batch,
        "num_atoms": given.counts,
    }
    found = program(structure)
    return {name: found["total_energy" if name == "energy" else name] for name in NAMES}


def test_all_models_are_here() -> None:
    builders = {builder for builder, _ in MODELS.values()}
    assert {*package("nequip.model").__all__} == {*builders, *LEFT_OUT}


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, compiled: Compilations) -> None:
    assert_trained_alike(make(name), predict, [boxes(each) for each in SIZES], compiled)


def test_the_forces_of_pairs_of_atoms(compiled: Compilations) -> None:
    """A Jacobian inside the model."""
    nn_modules = package("nequip.nn")
    model: Any = make("NequIPGNNModel", do_derivatives=False)
    partial = nn_modules.PartialForceOutput(model.model.func).train()

    def predict_partial(program: Any, given: Boxes) -> dict[str, Tensor]:
        structure = {
            "pos": given.positions.clone(),
            "atom_types": given.kinds,
            "edge_index": given.pairs,
        }
        found = program(structure)
        return {name: found[name] for name in ("forces", "partial_forces", "total_energy")}

    one_box = [boxes(each[:1], periodic=False) for each in SIZES]
    assert_trained_alike(partial, predict_partial, one_box, compiled)
