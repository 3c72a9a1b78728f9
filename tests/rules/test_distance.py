import math

import pytest
import torch

from tests.differentiation import bridged, check
from tests.rules.rows import is_right, real

NORMS = [0.5, 1.0, 1.5, 2.0, 3.0, math.inf]


def cdist(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    return torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize("p", NORMS)
def test_cdist_has_a_second_derivative(p: float) -> None:
    is_right(lambda x, y: cdist(x, y, p), real(2, 3, 3), real(2, 4, 3, seed=1))


@pytest.mark.parametrize("p", NORMS)
def test_pdist_has_a_second_derivative(p: float) -> None:
    is_right(lambda x: torch.nn.functional.pdist(x, p), real(5, 3))


@pytest.mark.parametrize("p", [0.0, *NORMS])
def test_coincident_points_have_eagers_derivative_and_no_second_one(p: float) -> None:
    x = real(3, 2)
    y = x.detach()[[0, 1, 1]].requires_grad_()
    check(lambda a, b: cdist(a, b, p), [x, y], 1)
    for function, inputs in (
        (lambda a, b: cdist(a, b, p), [x, y]),
        (lambda a: torch.nn.functional.pdist(a, p), [y]),
    ):
        distance = bridged(function, *inputs)(*inputs)
        gradients = torch.autograd.grad(distance.sum(), inputs, create_graph=True)
        total = sum((each * each).sum() for each in gradients)
        assert isinstance(total, torch.Tensor)
        if total.requires_grad:
            seconds = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
            assert all(each.isfinite().all() for each in seconds)


def test_equal_coordinates_have_eagers_derivative() -> None:
    x = torch.tensor([[1.0, -1.0], [2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    for p in (1.0, math.inf, 1.5):
        check(lambda a, b, p=p: cdist(a, b, p), [x, y], 1)
