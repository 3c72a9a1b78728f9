import pytest
import torch

from adjoint.bench.zoo.equivariant import (
    DEGREES,
    HARMONICS,
    PATHS,
    EquivariantPotential,
    coefficients,
    part,
    spherical_harmonics,
)
from adjoint.bench.zoo.molecules import molecules


def directions(count: int) -> torch.Tensor:
    vectors = torch.randn(count, 3, dtype=torch.float64)
    unit: torch.Tensor = vectors / vectors.norm(dim=1, keepdim=True)
    return unit


def test_harmonics_are_those_that_the_coefficients_are_made_of() -> None:
    at = directions(5)
    zero = torch.zeros(5, dtype=torch.float64)
    columns = [
        sum((a * at.pow(torch.tensor(e)).prod(1) for e, a in each.items()), zero)
        for degree in HARMONICS
        for each in degree
    ]
    torch.testing.assert_close(spherical_harmonics(at), torch.stack(columns, 1))


@pytest.mark.parametrize("degree", DEGREES)
def test_the_sum_of_squares_of_harmonics_is_the_same_everywhere(degree: int) -> None:
    squares = spherical_harmonics(directions(9))[:, part(degree)].square().sum(1)
    torch.testing.assert_close(squares, torch.full_like(squares, 2 * degree + 1))


def rotation_of(degree: int, turn: torch.Tensor) -> torch.Tensor:
    """The matrix by which the harmonics of one l are transformed when vectors turn."""
    at = directions(40)
    before = spherical_harmonics(at)[:, part(degree)]
    after = spherical_harmonics(at @ turn.T)[:, part(degree)]
    matrix: torch.Tensor = torch.linalg.lstsq(before, after).solution
    return matrix.T


@pytest.mark.parametrize("path", PATHS)
def test_products_turn_with_their_factors(path: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    left, right, out = (rotation_of(degree, turn) for degree in path)
    given = coefficients(path)
    turned = torch.einsum("ai,bj,ck,ijk->abc", left, right, out, given)
    torch.testing.assert_close(turned, given)
    torch.testing.assert_close(given.square().sum().item(), 2.0 * path[2] + 1)


def test_there_are_as_many_paths_as_keep_parity() -> None:
    assert len(PATHS) == 11


def test_the_energy_does_not_change_when_molecules_turn() -> None:
    torch.manual_seed(0)
    given = molecules(2, 6, "cpu")
    net, positions = EquivariantPotential(4, 2).double(), given.positions.double()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    edges = (given.to, given.source)
    energy = net(given.species, positions, *edges)
    # Coefficients are buffers that were rounded to single precision.
    torch.testing.assert_close(
        net(given.species, positions @ turn, *edges), energy, rtol=1e-6, atol=0
    )
    assert (net(given.species, positions * 1.1, *edges) - energy).abs() > 1e-4
