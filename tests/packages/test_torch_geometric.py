"""The interatomic potentials of PyTorch Geometric, trained on forces."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import MARKS, Compilations, assert_trained_alike, package
from tests.packages.structures import CUTOFF, SIZES, Boxes, boxes

pytestmark = MARKS

KINDS = torch.tensor([1, 6])

# ViSNet takes norms of sums over neighbours: an atom without any has gradients that are not finite.
CROWDED = ((4, 6), (6, 7))

DIMENET = {
    "hidden_channels": 4,
    "out_channels": 1,
    "num_blocks": 1,
    "num_spherical": 2,
    "num_radial": 3,
    "cutoff": CUTOFF,
}
PLUS = {"int_emb_size": 4, "basis_emb_size": 2, "out_emb_channels": 4}
SCHNET = {"hidden_channels": 4, "num_filters": 4, "num_gaussians": 5, "cutoff": CUTOFF}
VISNET = {
    "num_heads": 2,
    "hidden_channels": 4,
    "num_layers": 2,
    "num_rbf": 4,
    "max_z": 10,
    "cutoff": CUTOFF,
    "max_num_neighbors": 16,
    "derivative": True,
}

# Class and arguments.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "SchNet": ("SchNet", {**SCHNET, "num_interactions": 2}),
    "SchNet, means": ("SchNet", {**SCHNET, "num_interactions": 1, "readout": "mean"}),
    "SchNet, dipoles": ("SchNet", {**SCHNET, "num_interactions": 1, "dipole": True}),
    "DimeNet": ("DimeNet", {**DIMENET, "num_bilinear": 2}),
    "DimeNet++": ("DimeNetPlusPlus", {**DIMENET, **PLUS}),
    "ViSNet": ("ViSNet", {**VISNET, "lmax": 1}),
}

# Options of it, which are compiled in one of the two ways: it is large.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViSNet, vertices": ("ViSNet", {**VISNET, "lmax": 2, "vertex": True}),
    "ViSNet, trained basis": ("ViSNet", {**VISNET, "lmax": 1, "trainable_rbf": True}),
}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def pairs_within(positions: Tensor, batch: Tensor) -> Tensor:
    """Pairs within the cutoff; how many there are depends on data, so no compiler sees it."""
    near = torch.cdist(positions.detach(), positions.detach()) < CUTOFF
    near = (near & (batch[:, None] == batch)).fill_diagonal_(False)
    return near.nonzero().T.contiguous()


class Pairs(nn.Module):
    """What SchNet is told about its neighbours."""

    def forward(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        pairs = pairs_within(positions, batch)
        return pairs, (positions[pairs[0]] - positions[pairs[1]]).norm(dim=-1)


class Vectors(nn.Module):
    """What ViSNet is told about its neighbours, itself among them."""

    def forward(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = pairs_within(positions, batch)
        vectors = positions[pairs[0]] - positions[pairs[1]]
        loops = torch.arange(len(positions)).expand(2, -1)
        nothing = torch.zeros(len(positions), 3)
        weights = torch.cat([vectors.norm(dim=-1), nothing[:, 0]])
        return torch.cat([pairs, loops], 1), weights, torch.cat([vectors, nothing])


def make(name: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """The model with random weights; neighbours are found without compiled extensions."""
    kind, arguments = {**MODELS, **VARIANTS}[name]
    classes = package("torch_geometric.nn.models")
    torch.manual_seed(0)
    options = {"interaction_graph": Pairs()} if kind == "SchNet" else {}
    model = getattr(classes, kind)(**arguments, **options)
    if kind == "ViSNet":
        model.representation_model.distance = Vectors()
    if kind.startswith("DimeNet"):

        def radius_graph(positions: Tensor, r: float, batch: Tensor, **_: Any) -> Tensor:
            pairs: Tensor = pairs_within(positions, batch)
            return pairs

        def triplets(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
            """As the package's own, without sparse tensors of an extension."""
            row, col = edge_index
            onward = (row[:, None] == col) & (col[:, None] != row)
            last, first = onward.nonzero().T
            return col, row, col[last], row[last], row[first], first, last

        dimenet = package("torch_geometric.nn.models.dimenet")
        monkeypatch.setattr(dimenet, "radius_graph", radius_graph)
        monkeypatch.setattr(dimenet, "triplets", torch.compiler.disable(triplets))
        # Without this the last layer is zero, and with it all but its own gradients.
        for block in model.output_blocks:
            nn.init.orthogonal_(block.lin.weight)
    made: nn.Module = model.double().train()
    return made


def predict(program: Any, given: Boxes) -> dict[str, Tensor]:
    positions = given.positions.clone().requires_grad_()
    found = program(KINDS[given.kinds], positions, given.batch)
    if isinstance(found, tuple):
        return {"energy": found[0], "forces": found[1]}
    (slope,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
    return {"energy": found, "forces": -slope}


def test_all_models_are_here() -> None:
    classes = package("torch_geometric.nn.models")
    taking_positions = {
        name
        for name in classes.__all__
        if hasattr(getattr(classes, name), "forward")
        and "pos" in inspect.signature(getattr(classes, name).forward).parameters
    }
    # GNNFF has forces for its outputs: nothing is differentiated to have them.
    assert taking_positions - {"GNNFF"} == {kind for kind, _ in MODELS.values()}


@pytest.mark.parametrize("name", MODELS)
def test_models(
    name: str, derived: bool | None, compiled: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name, monkeypatch)
    sizes = CROWDED if name == "ViSNet" else SIZES
    assert_trained_alike(model, predict, [boxes(each) for each in sizes], compiled, derived)


@pytest.mark.parametrize("derived", ["inside"], indirect=True)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(
    name: str, derived: bool | None, compiled: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name, monkeypatch)
    assert_trained_alike(model, predict, [boxes(each) for each in CROWDED], compiled, derived)
