import itertools

import pytest
import torch

from adjoint.rules.sampling import _samples
from tests.differentiation import OP_BY_OP, check
from tests.rules.rows import real

INTERPOLATIONS = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
CASES = [
    case
    for case in itertools.product(INTERPOLATIONS, PADDINGS, (False, True), (2, 3))
    if case[0] != "bicubic" or case[3] == 2
]
DIFFERENTIATED = [
    *(("bilinear", padding, aligned, 2) for padding in PADDINGS for aligned in (False, True)),
    ("nearest", "zeros", False, 2),
    ("bicubic", "reflection", False, 2),
    ("bilinear", "border", True, 3),
]
NAMES = ("interpolation", "padding", "aligned", "axes")


def inputs(axes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points inside of the tensor and around it."""
    x = real(2, 2, *(4, 3, 5)[:axes])
    return x, (1.4 * real(2, *(2, 3, 1)[:axes], axes, seed=1).detach()).requires_grad_()


@pytest.mark.parametrize(NAMES, DIFFERENTIATED)
def test_two_derivatives(interpolation: str, padding: str, aligned: bool, axes: int) -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grid_sample(x, grid, interpolation, padding, aligned)

    check(sampled, inputs(axes), 2, options=OP_BY_OP)


@pytest.mark.parametrize(NAMES, CASES)
def test_samples_are_eagers(interpolation: str, padding: str, aligned: bool, axes: int) -> None:
    modes = INTERPOLATIONS.index(interpolation), PADDINGS.index(padding)
    x, grid = inputs(axes)
    expected = torch.nn.functional.grid_sample(x, grid, interpolation, padding, aligned)
    torch.testing.assert_close(_samples(x, grid, *modes, aligned), expected)
    mine = torch.autograd.grad(
        _samples(x, grid, *modes, aligned).square().sum(),
        [x, grid],
        allow_unused=True,
        materialize_grads=True,
    )
    theirs = torch.autograd.grad(expected.square().sum(), [x, grid])
    torch.testing.assert_close(mine, theirs)
