import torch
from torch import Tensor

from demo.morse import ATOMS, CLUSTERS, REST, Clusters, force_loss, icosahedron, morse_energy


def test_twelve_atoms_at_equal_distance_around_one() -> None:
    centre, *ring = icosahedron()
    distances = torch.stack([(atom - centre).norm() for atom in ring])
    torch.testing.assert_close(distances, torch.full((12,), REST))
    apart = torch.pdist(torch.stack(ring))
    assert apart.min() > 0.9 * REST


def test_forces_are_minus_the_gradient_of_the_energy() -> None:
    clusters = Clusters()
    positions = clusters.positions(1).double()
    direction = torch.randn_like(positions)
    forces, step = clusters.forces(positions), 1e-5

    def energy(at: Tensor) -> Tensor:
        return morse_energy(at, clusters.species)

    change = (energy(positions + step * direction) - energy(positions - step * direction)) / 2
    torch.testing.assert_close(change / step, -(forces * direction).sum(), rtol=1e-7, atol=0)


def test_edges_join_all_atoms_of_a_cluster_and_no_others() -> None:
    species, positions, to, source, forces = Clusters().batch(2)
    assert len(species) == len(positions) == len(forces) == CLUSTERS * ATOMS
    assert torch.equal(to // ATOMS, source // ATOMS)
    assert len(set(zip(to.tolist(), source.tolist(), strict=True))) == CLUSTERS * ATOMS * (
        ATOMS - 1
    )
    assert not (to == source).any()


def test_the_loss_of_a_network_that_says_nothing_is_about_one() -> None:
    def nothing(species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        return (0 * positions).sum()

    assert abs(force_loss(nothing, *Clusters().batch(0)).item() - 1) < 1e-5
    assert 0.3 < force_loss(nothing, *Clusters().batch(7)).item() < 3
