"""The pages of whole models: a language model, a potential, a PINN of Navier-Stokes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adjoint.bench.workloads import WORKLOADS
from adjoint.explaining import explain
from tests.browsers import NEEDS_A_BROWSER, Browser, driven

pytestmark = [pytest.mark.slow, NEEDS_A_BROWSER]

MAX_BYTES = 15 << 20
MAX_SECONDS = 2.0


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
    file = tmp_path / "model.html"
    explain(function, *args, order=order).save(file)
    assert file.stat().st_size < MAX_BYTES
    browser.resize(1500, 950)
    begun = time.monotonic()
    browser.open(file)
    browser.wait("return document.documentElement.dataset.ready === 'yes'")
    assert time.monotonic() - begun < MAX_SECONDS
    # A line, a value of the program, a value of a derivative and a kernel are linked.
    linked = browser.run(
        """
        const { VALUES, DATA, linked } = REPORT;
        const place = VALUES.findIndex((v, n) => DATA.graphs[v.graph].role === 'forward'
          && DATA.graphs[v.graph].order === 0 && v.line !== null && v.kernels.length
          && [...linked('value', n).value].some((o) => DATA.graphs[VALUES[o].graph].order > 0));
        return place < 0 ? null : [...linked('value', place).kernel].length;
        """
    )
    assert linked
