"""The pages of whole models: a language model, a potential, a PINN of Navier-Stokes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adjoint.bench.workloads import WORKLOADS
from adjoint.explaining import explain
from tests.browsers import NEEDS_A_BROWSER, Browser, driven
from tests.pages import assert_page_opens_at_once

pytestmark = [pytest.mark.slow, NEEDS_A_BROWSER]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from driven()


def navier_stokes() -> tuple[Callable[..., Any], tuple[Tensor, ...], int]:
    """The residual of the momentum equation for a stream function: third derivatives."""
    layers: list[nn.Module] = [nn.Linear(3, 20), nn.Tanh()]
    for _ in range(6):
        layers += [nn.Linear(20, 20), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(20, 2))

    def residual(points: Tensor) -> Tensor:
        def slope(of: Tensor) -> Tensor:
            return torch.autograd.grad(of.sum(), points, create_graph=True)[0]

        points = points.detach().requires_grad_()
        stream, pressure = net(points).unbind(1)
        u, v = slope(stream)[:, 1], -slope(stream)[:, 0]
        u_x, p_x = slope(u), slope(pressure)
        u_xx, u_yy = slope(u_x[:, 0])[:, 0], slope(u_x[:, 1])[:, 1]
        return (u_x[:, 2] + u * u_x[:, 0] + v * u_x[:, 1] + p_x[:, 0] - 0.01 * (u_xx + u_yy)).sum()

    return residual, (torch.rand(64, 3),), 1


def gpt() -> tuple[Callable[..., Any], tuple[Tensor, ...], int]:
    problem = WORKLOADS["gpt"]("cpu", True)
    return problem.net, problem.batch, 1


def potential() -> tuple[Callable[..., Any], tuple[Tensor, ...], int]:
    """Trained on forces: second derivatives."""
    problem = WORKLOADS["forces"]("cpu", True)
    return problem.net, problem.batch[:4], 2


MODELS = {"gpt": gpt, "potential": potential, "navier-stokes": navier_stokes}


@pytest.mark.parametrize("name", MODELS)
def test_the_page_of_a_model_is_small_and_opens_at_once(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    function, args, order = MODELS[name]()
    assert_page_opens_at_once(explain(function, *args, order=order), browser, tmp_path)
