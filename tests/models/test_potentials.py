"""Interatomic potentials from PyPI, trained on forces: compiled, a step is as in eager.

Forces are a derivative of the energy, so the gradient of a loss on them is a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from nequip.model import NequIPGNNModel
from nequip.utils.global_state import set_global_state
from torch import Tensor, nn
from torch._dynamo import config
from torch_geometric.nn import SchNet

from adjoint.backend import compile_graph
from adjoint.runtime.bridge import DifferentiableGraph

# What nequip makes torch warn about, when it prepares itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.set_fusion_strategy` is deprecated")

CUTOFF = 2.5
Energy: TypeAlias = Callable[[Any, Tensor, Tensor], Tensor]


def atoms(count: int) -> tuple[Tensor, Tensor]:
    """Kinds and positions, near enough to each other for many to be neighbours."""
    generator = torch.Generator().manual_seed(count)
    positions = 3 * torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return torch.randint(0, 2, (count,), generator=generator), positions


@torch.compiler.disable  # type: ignore[untyped-decorator]
def neighbours(positions: Tensor) -> Tensor:
    """Pairs within the cutoff; how many there are depends on data, so no compiler sees it."""
    where = positions.detach()
    near = torch.cdist(where, where) < CUTOFF
    return near.fill_diagonal_(False).nonzero().T.contiguous()


class Distances(nn.Module):
    """What SchNet is told about its neighbours."""

    def forward(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        pairs = neighbours(positions)
        return pairs, (positions[pairs[0]] - positions[pairs[1]]).norm(dim=-1)


def schnet(**sizes: Any) -> nn.Module:
    """The SchNet of torch_geometric."""
    torch.manual_seed(0)
    model: nn.Module = SchNet(cutoff=CUTOFF, interaction_graph=Distances(), **sizes)
    return model.double()


def schnet_energy(model: Any, kinds: Tensor, positions: Tensor) -> Tensor:
    energy: Tensor = model(kinds + 1, positions)
    return energy.sum()


def nequip(**sizes: Any) -> nn.Module:
    """NequIP, which is made of the tensor products of e3nn."""
    model: nn.Module = NequIPGNNModel(
        seed=0,
        model_dtype="float64",
        r_max=CUTOFF,
        type_names=["H", "C"],
        do_derivatives=False,
        avg_num_neighbors=4.0,
        per_type_energy_scales=1.5,
        per_type_energy_shifts={"H": 0.25, "C": -0.5},
        **sizes,
    )
    return model


def nequip_energy(model: Any, kinds: Tensor, positions: Tensor) -> Tensor:
    structure = {"pos": positions, "edge_index": neighbours(positions), "atom_types": kinds}
    energy: Tensor = model(structure)["total_energy"]
    return energy.sum()


SMALL = {
    "schnet": (
        schnet,
        schnet_energy,
        {"hidden_channels": 8, "num_filters": 8, "num_interactions": 1, "num_gaussians": 6},
    ),
    "nequip": (
        nequip,
        nequip_energy,
        {"num_layers": 1, "l_max": 1, "num_features": 4, "radial_mlp_width": 8, "num_bessels": 4},
    ),
}

LARGER: dict[str, dict[str, Any]] = {
    "schnet": {"num_interactions": 3},
    "nequip": {"num_layers": 2, "l_max": 2, "num_features": 3, "bessel_trainable": True},
}


def step(model: nn.Module, energy_of: Energy, program: Any, count: int) -> dict[str, Any]:
    """What a training step on energies and forces computes."""
    kinds, positions = atoms(count)
    positions.requires_grad_()
    energy = energy_of(program, kinds, positions)
    (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
    wanted = torch.linspace(-1, 1, slope.numel(), dtype=slope.dtype).reshape(slope.shape)
    model.zero_grad()
    ((-slope - wanted).square().mean() + energy.square()).backward()
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {"energy": energy.detach(), "forces": -slope.detach(), "gradients": gradients}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """The default dtype that nequip sets for the whole process, while its test lasts."""
    before = torch.get_default_dtype()
    set_global_state()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that the backend compiles."""
    programs: list[Any] = []

    def counted(*args: Any) -> Any:
        programs.append(compile_graph(*args))
        return programs[-1]

    monkeypatch.setattr("adjoint.backend.compile_graph", counted)
    torch.compiler.reset()
    with config.patch(suppress_errors=False):
        yield programs
    torch.compiler.reset()


def assert_trained_alike(
    name: str, sizes: dict[str, Any], counts: Sequence[int], **options: Any
) -> None:
    make, energy_of, small = SMALL[name]
    model = make(**{**small, **sizes})
    program = torch.compile(model, backend="adjoint", **options)
    for count in counts:
        expected = step(model, energy_of, model, count)
        assert any(each is not None and each.any() for each in expected["gradients"].values())
        actual = step(model, energy_of, program, count)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def assert_differentiated(programs: Sequence[Any]) -> None:
    """The graphs ran, and none was left to eager autograd."""
    graphs = [graph for program in programs for graph in program.runnables()]
    assert graphs
    assert all(isinstance(graph, DifferentiableGraph) and not graph._eager for graph in graphs)
    assert any(graph.grad_programs() for graph in graphs)


@pytest.mark.parametrize("name", SMALL)
def test_a_step_is_as_in_eager(name: str, compiled: list[Any]) -> None:
    assert_trained_alike(name, {}, [5])
    assert_differentiated(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_several_layers_is_as_in_eager(name: str, compiled: list[Any]) -> None:
    assert_trained_alike(name, LARGER[name], [6])
    assert_differentiated(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", SMALL)
def test_steps_over_structures_of_many_sizes(
    name: str, dynamic: bool | None, compiled: list[Any]
) -> None:
    # Some sizes are also widths of the networks, and the derivative is another one for those.
    assert_trained_alike(name, {}, [5, 7, 8, 4, 12, 6, 3], dynamic=dynamic)
    assert_differentiated(compiled)
