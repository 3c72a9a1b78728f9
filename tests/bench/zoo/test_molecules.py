import pytest
import torch
from torch import nn

from adjoint.bench.workloads import CUTOFF
from adjoint.bench.zoo.molecules import DimeNet, PaiNN, SchNet, molecules


def test_edges_are_within_the_cutoff_and_within_a_molecule() -> None:
    torch.manual_seed(0)
    given = molecules(3, 8, "cpu")
    distances = (given.positions[given.to] - given.positions[given.source]).norm(dim=1)
    assert 0 < distances.min() < distances.max() < CUTOFF
    assert torch.equal(given.to // 8, given.source // 8)
    assert 3 * 8 < len(given.to) < 3 * 8 * 7


@pytest.mark.parametrize("kind", ["schnet", "painn", "dimenet"])
def test_the_energy_does_not_change_when_molecules_turn(kind: str) -> None:
    torch.manual_seed(0)
    given = molecules(2, 6, "cpu")
    net: nn.Module
    if kind == "dimenet":
        pytest.importorskip("torch_geometric")
        net = DimeNet(8, 1, given)
    else:
        net = (SchNet if kind == "schnet" else PaiNN)(8, 2)
    net, positions = net.double(), given.positions.double()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    edges = (given.to, given.source)
    energy = net(given.species, positions, *edges)
    torch.testing.assert_close(net(given.species, positions @ turn, *edges), energy)
    assert (net(given.species, positions * 1.1, *edges) - energy).abs() > 1e-6
