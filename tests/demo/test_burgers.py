import math

import torch

from demo.burgers import Wave, exact, line, random_points, residual_loss, solution_error


def test_the_exact_solution_solves_the_equation() -> None:
    points = random_points(0)[0][:32].double()
    assert residual_loss(exact, points).item() < 1e-20


def test_every_network_satisfies_the_initial_and_boundary_conditions() -> None:
    torch.manual_seed(0)
    wave = Wave(8, 2).double()
    start, later = line(0.0), line(0.7)
    torch.testing.assert_close(wave(start), -torch.sin(math.pi * start[:, 0]))
    torch.testing.assert_close(exact(start), -torch.sin(math.pi * start[:, 0]))
    for u in (wave, exact):
        torch.testing.assert_close(u(later)[[0, -1]], torch.zeros(2, dtype=torch.float64))


def test_a_step_always_has_the_same_points() -> None:
    (first,), (again,), (other,) = random_points(3), random_points(3), random_points(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first[:, 0].min() < -0.9
    assert first[:, 0].max() > 0.9
    assert first[:, 1].min() >= 0


def test_an_untrained_wave_is_far_from_the_solution() -> None:
    torch.manual_seed(0)
    assert 0.05 < solution_error(Wave(8, 2)) < 2
