"""Every model of MACE, trained on energies, forces, virials and stresses."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from adjoint.explaining import explain
from tests.browsers import NEEDS_A_BROWSER, driven
from tests.packages.steps import (
    MARKS,
    Compilations,
    assert_trained_alike,
    package,
)
from tests.packages.structures import CUTOFF, SIZES, Boxes, boxes
from tests.pages import assert_page_opens_at_once

pytestmark = MARKS

ENERGY = ("energy", "forces", "virials", "stress")
CHARGES = ("charges", "dipole", "polarizability")

# Of each model, what it predicts.
MODELS = {
    "MACE": ENERGY,
    "ScaleShiftMACE": ENERGY,
    "AtomicDipolesMACE": ("dipole", "atomic_dipoles"),
    "AtomicDielectricMACE": CHARGES,
    "EnergyDipolesMACE": (*ENERGY, "dipole"),
}

LEFT_OUT = {"PolarMACE": "needs graph_longrange, which is on no package index"}

INTERACTIONS = (
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticAttResidualInteractionBlock",
    "RealAgnosticInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
    "RealAgnosticResidualNonLinearInteractionBlock",
)

OPTIONS: dict[str, dict[str, Any]] = {
    "pair repulsion": {"pair_repulsion": True},
    "distances transformed": {"distance_transform": "Agnesi"},
    "gaussians": {"radial_type": "gaussian"},
    "no cutoff": {"apply_cutoff": False},
    "all couplings": {"use_reduced_cg": False},
    "no parity": {"use_so3": True},
    "product without kinds": {"use_agnostic_product": True},
    "last readout": {"use_last_readout_only": True, "num_interactions": 2},
}


def make(name: str, prepared: bool = True, **options: Any) -> nn.Module:
    """The model with random weights; `prepared`: as the package does for compilers."""
    modules, o3 = package("mace.modules"), package("e3nn.o3")
    blocks = modules.interaction_classes
    dipoles = name != "MACE" and name != "ScaleShiftMACE"
    dielectric = name == "AtomicDielectricMACE"
    sizes: dict[str, Any] = {
        "r_max": CUTOFF,
        "num_bessel": 4,
        "num_polynomial_cutoff": 5,
        "max_ell": 2 if dielectric else 1,
        "interaction_cls": blocks["RealAgnosticResidualInteractionBlock"],
        "interaction_cls_first": blocks["RealAgnosticResidualInteractionBlock"],
        "num_interactions": 1,
        "num_elements": 2,
        "hidden_irreps": o3.Irreps("2x0e + 2x1o + 2x2e" if dielectric else "3x0e + 3x1o"),
        "MLP_irreps": o3.Irreps("2x0e + 2x1o + 2x2e" if dielectric else "2x0e + 2x1o")
        if dipoles
        else o3.Irreps("4x0e"),
        "atomic_energies": torch.tensor([-1.0, 0.5]).numpy() if "energy" in MODELS[name] else None,
        "avg_num_neighbors": 6.0,
        "atomic_numbers": [1, 6],
        "correlation": 2,
        "gate": torch.nn.functional.silu,
        "radial_MLP": [4],
    }
    if name == "ScaleShiftMACE":
        sizes |= {"atomic_inter_scale": 1.5, "atomic_inter_shift": 0.25}
    for key in ("interaction_cls", "interaction_cls_first", "readout_cls"):
        if isinstance(options.get(key), str):
            options[key] = getattr(modules, options[key])
    torch.manual_seed(0)
    factory = getattr(modules, name)
    compiling = package("mace.tools.compile")
    # To prepare a model also changes how Dynamo takes calls of autograd, for the whole process.
    with mock.patch.object(compiling, "configure_autograd_for_compile"):
        prepared_factory = compiling.prepare(factory) if prepared else factory
    made: nn.Module = prepared_factory(**{**sizes, **options})
    return made


def predict(program: Any, given: Boxes) -> dict[str, Tensor]:
    """As MACE is called in training; what is predicted follows from what a model takes."""
    structure = {
        "positions": given.positions.clone().requires_grad_(),
        "node_attrs": nn.functional.one_hot(given.kinds, 2).to(given.positions),
        "edge_index": given.pairs,
        "shifts": given.shifts(),
        "unit_shifts": given.images,
        "cell": given.cells.reshape(-1, 3),
        "batch": given.batch,
        "ptr": given.starts,
        "head": torch.zeros(len(given.cells), dtype=torch.int64),
        "charges": torch.linspace(-1, 1, len(given.kinds)),
        "total_charge": torch.arange(float(len(given.cells))),
    }
    model = getattr(program, "_orig_mod", program)
    names = MODELS[type(model).__name__]
    asked = {"compute_stress": True, "compute_virials": True} if "stress" in names else {}
    predictions = program(structure, training=True, **asked)
    return {name: predictions[name] for name in names}


def structures() -> list[Boxes]:
    return [boxes(counts) for counts in SIZES]


def test_all_models_are_here() -> None:
    modules = package("mace.modules")
    found = {name for name in modules.__all__ if name.endswith("MACE")}
    assert found == {*MODELS, *LEFT_OUT}
    assert set(modules.interaction_classes) == {*INTERACTIONS}
    assert all(inspect.isclass(getattr(modules, name)) for name in found)


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, compiled: Compilations) -> None:
    model = make(name, num_interactions=2 if name == "ScaleShiftMACE" else 1)
    assert_trained_alike(model, predict, structures(), compiled)


@NEEDS_A_BROWSER
@pytest.mark.usefixtures("derived")
def test_the_page_of_a_model(tmp_path: Path) -> None:
    model, (given, *_) = make("ScaleShiftMACE", num_interactions=2), structures()
    for browser in driven():
        explanation = explain(lambda: predict(model, given), order=1)
        assert_page_opens_at_once(explanation, browser, tmp_path)


@pytest.mark.parametrize("name", ["MACE", "ScaleShiftMACE"])
def test_parts_are_torchscript(name: str, compiled: Compilations) -> None:
    model = make(name, prepared=False)
    assert_trained_alike(model, predict, structures(), compiled)


@pytest.mark.parametrize("interaction", INTERACTIONS)
def test_interactions(interaction: str, compiled: Compilations) -> None:
    options: dict[str, Any] = {"interaction_cls_first": interaction}
    if interaction == "RealAgnosticAttResidualInteractionBlock":  # It cannot be the first one.
        options = {"interaction_cls": interaction, "num_interactions": 2}
    assert_trained_alike(make("ScaleShiftMACE", **options), predict, structures(), compiled)


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, compiled: Compilations) -> None:
    model = make("ScaleShiftMACE", **OPTIONS[option])
    assert_trained_alike(model, predict, structures(), compiled)
