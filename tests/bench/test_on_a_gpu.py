"""The workloads on a GPU, against eager there."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from adjoint.bench.measure import relative_error
from adjoint.bench.problems import Problem, step_of
from adjoint.bench.workloads import WORKLOADS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 200


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("system", ["adjoint", "func_adjoint"])
def test_a_step_is_eagers(workload: str, system: str) -> None:
    """Several times over: the first calls are run, later ones recorded and launched again."""
    problem = WORKLOADS[workload]("cuda", True).double()
    if system not in ("adjoint", *problem.inside):
        pytest.skip("there is no derivative inside")
    step, eager = step_of(problem, system), step_of(problem, "eager")
    right = {name: x.clone() for name, x in eager.computed(eager.run()).items()}
    for _ in range(6):
        found = {name: x.clone() for name, x in step.computed(step.run()).items()}
        assert relative_error(found, right) < 1e-9


def derivatives(problem: Problem, net: Any, orders: int) -> dict[str, Tensor]:
    """Of the loss, the size of its gradient, the size of the gradient of that, and so on."""
    parameters = list(problem.net.parameters())
    value, found = problem.outside(net, *problem.batch), []
    for order in range(1, orders + 1):
        gradients = torch.autograd.grad(
            value, parameters, create_graph=order < orders, materialize_grads=True
        )
        value = torch.stack([each.square().sum() for each in gradients]).sum().sqrt()
        found += [each.detach() for each in (value, *gradients)]
    return {str(number): each for number, each in enumerate(found)}


def written_out(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * (variance + eps).rsqrt() * weight + bias


@pytest.mark.parametrize("workload", ["forces", "gp", "gpt"])
@pytest.mark.parametrize("orders", [2, 3])
def test_higher_orders_are_eagers(workload: str, orders: int) -> None:
    problem = WORKLOADS[workload]("cuda", True).double()
    compiled = torch.compile(problem.net, backend="adjoint")
    # The third derivative of a layer norm is wrong in eager: its second one takes means and
    # deviations for constants.
    with mock.patch.object(nn.functional, "layer_norm", written_out):
        right = derivatives(problem, problem.net, orders)
    assert relative_error(derivatives(problem, compiled, orders), right) < 1e-9


def losses(problem: Problem, backend: str, half: bool) -> Tensor:
    net = copy.deepcopy(problem.net)
    call = torch.compile(net, backend="adjoint") if backend == "adjoint" else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    found = []
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = problem.outside(call, *problem.batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def test_a_transformer_learns_in_bfloat16_as_in_eager() -> None:
    """Losses differ from eager's by no more than those do for which only rounding differs."""
    problem = WORKLOADS["gpt"]("cuda", True)
    ours, eager = losses(problem, "adjoint", True), losses(problem, "eager", True)
    single = losses(problem, "eager", False)
    assert eager[-1] < eager[0] / 2, "it learns"
    assert (ours - eager).abs().mean() <= 2 * (single - eager).abs().mean()
    assert (ours - eager).abs().max() <= 2 * (single - eager).abs().max()
