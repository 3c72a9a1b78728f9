"""A workload as data, and one training step of it on each system."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor, nn

from adjoint.open_types import UserFunction
from adjoint.transforms import value_and_grad

Parameters = Mapping[str, Tensor]
Network = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """One workload at one size: a network, its batch, and its losses."""

    net: nn.Module
    batch: tuple[Tensor, ...]
    outside: Callable[..., Tensor]
    """The loss as a function of the network, compiled or not, and the batch."""
    inside: dict[str, Callable[[nn.Module], UserFunction]]
    """By system: from the network, a loss as a function of its parameters and the batch."""
    mixed: bool = False
    """The loss is computed under bfloat16 autocast."""
    direct: bool = False
    """What `inside` makes is the whole step: it returns a value and its derivatives itself."""

    def double(self) -> Problem:
        """The same problem in float64."""
        batch = tuple(x.double() if x.is_floating_point() else x for x in self.batch)
        net = copy.deepcopy(self.net).double()
        return replace(self, net=net, batch=batch, mixed=False)


@dataclass(frozen=True)
class Step:
    """A function to time, and one that finds the named tensors in what it returned."""

    run: UserFunction
    computed: Callable[..., dict[str, Tensor]]
    repeats: bool = True
    """Every run computes the same tensors."""


@dataclass(frozen=True)
class Expected:
    """The tensors that a step should compute, by name, according to eager torch."""

    tensors: dict[str, Tensor]
    in_float64: bool = True
    """False: eager ran in the precision of the step, with rounding errors of its own."""


def step_of(problem: Problem, system: str) -> Step:
    """One training step of `problem`, without the optimizer, on one of the torch systems."""
    step = training_step(problem, system)
    return replace(step, run=lambda: step.run(*problem.batch))


class Settings(TypedDict):
    """What `torch.compile` and transforms are given."""

    dynamic: bool | None
    options: Mapping[str, object] | None


def training_step(
    problem: Problem,
    system: str,
    dynamic: bool | None = None,
    options: Mapping[str, object] | None = None,
) -> Step:
    """The same step as a function of the batch.

    `options`: those of adjoint, or of Inductor.
    """
    settings = Settings(dynamic=dynamic, options=options)
    if system in problem.inside or system.startswith("func_"):
        return _inside_step(problem, system, settings)
    net: UserFunction = problem.net
    if system != "eager":
        net = torch.compile(problem.net, backend=system, **settings)  # type: ignore[arg-type]

    def run(*batch: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=problem.mixed):
            loss = problem.outside(net, *batch)
        problem.net.zero_grad(set_to_none=True)
        loss.backward()

    def gradients(_: object) -> dict[str, Tensor]:
        named = problem.net.named_parameters()
        return {name: p.grad for name, p in named if p.grad is not None}

    return Step(run, gradients)


def _inside_step(problem: Problem, system: str, settings: Settings) -> Step:
    inside = problem.inside[system](problem.net)
    # Detached: of parameters that require grad, compilers would prepare one derivative more.
    parameters = {name: p.detach() for name, p in problem.net.named_parameters()}
    if system == "func_adjoint":
        both = inside if problem.direct else value_and_grad(inside, **settings)
    else:
        both = inside if problem.direct else torch_value_and_grad(inside)
        if system != "eager":
            backend = system.removeprefix("func_")
            both = torch.compile(both, backend=backend, **settings)  # type: ignore[arg-type]
    return Step(lambda *batch: both(parameters, *batch), lambda returned: returned[1])


def torch_value_and_grad(function: Callable[..., object]) -> UserFunction:
    """`torch.func`'s transform with its two results in adjoint's and JAX's order."""
    transformed = torch.func.grad_and_value(function)

    def both(*args: object) -> tuple[object, object]:
        gradients, value = transformed(*args)
        return value, gradients

    return both


def perceptron(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])
