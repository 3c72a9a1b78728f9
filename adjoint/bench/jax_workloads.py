"""`pinn` and `forces` in JAX, with the parameters and inputs of the torch workloads.

So that gradients can be compared, parameters keep torch's names. Weights are transposed: JAX
programs multiply from the right.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor, nn

from adjoint.bench.problems import Problem, Step
from adjoint.bench.workloads import CUTOFF, ENERGY_WEIGHT, RADIAL, VISCOSITY, Potential
from adjoint.open_types import TorchValue

# jax ships types, but is not installed where these are checked.
Array: TypeAlias = TorchValue
Arrays: TypeAlias = dict[str, Array]


def step_in_jax(workload: str, problem: Problem) -> Step:
    """One training step, without the optimizer, as one jitted function."""
    jax = importlib.import_module("jax")
    loss = WORKLOADS[workload](jax, problem)
    both = jax.jit(jax.value_and_grad(loss))
    transposed = _right_hand_weights(problem.net)
    parameters = {
        name: _array(jax, value.t() if name in transposed else value)
        for name, value in problem.net.named_parameters()
    }
    batch = [_array(jax, value) for value in problem.batch]

    def gradients(returned: tuple[object, Arrays]) -> dict[str, Tensor]:
        found = {name: torch.tensor(jax.device_get(g)) for name, g in returned[1].items()}
        return {name: g.t() if name in transposed else g for name, g in found.items()}

    return Step(lambda: jax.block_until_ready(both(parameters, *batch)), gradients)


def _array(jax: ModuleType, value: Tensor) -> Array:
    return jax.numpy.asarray(value.detach().cpu().contiguous().numpy())


def _right_hand_weights(net: nn.Module) -> set[str]:
    linear = (name for name, module in net.named_modules() if isinstance(module, nn.Linear))
    return {f"{name}.weight" for name in linear}


def _perceptron(
    parameters: Arrays, prefix: str, x: Array, activation: Callable[[Array], Array]
) -> Array:
    """`nn.Sequential` of linear layers, which are its even members."""
    names = sorted(
        (n for n in parameters if n.startswith(prefix) and n.endswith(".weight")),
        key=lambda name: int(name.split(".")[-2]),
    )
    for name in names:
        x = x @ parameters[name] + parameters[name.replace("weight", "bias")]
        if name != names[-1]:
            x = activation(x)
    return x


def _pinn(jax: ModuleType, problem: Problem) -> Callable[..., Array]:
    def u(parameters: Arrays, point: Array) -> Array:
        return _perceptron(parameters, "", point, jax.numpy.tanh)[0]

    slope = jax.grad(u, 1)
    curvature = jax.grad(lambda parameters, point: slope(parameters, point)[0], 1)

    def residual(parameters: Arrays, point: Array) -> Array:
        first, second = slope(parameters, point), curvature(parameters, point)
        return first[1] + u(parameters, point) * first[0] - VISCOSITY * second[0]

    def loss(parameters: Arrays, points: Array) -> Array:
        return (jax.vmap(residual, (None, 0))(parameters, points) ** 2).mean()

    return loss


def _forces(jax: ModuleType, problem: Problem) -> Callable[..., Array]:
    jnp, silu = jax.numpy, jax.nn.silu
    assert isinstance(problem.net, Potential)
    layers = len(problem.net.messages)

    def energy_of(
        parameters: Arrays, positions: Array, species: Array, to: Array, source: Array
    ) -> Array:
        distance = jnp.sqrt(((positions[to] - positions[source]) ** 2).sum(-1) + 1e-6)
        radial = jnp.exp(-4 * (distance[:, None] - jnp.linspace(0, CUTOFF, RADIAL)) ** 2)
        envelope = 0.5 * (jnp.cos(jnp.minimum(distance, CUTOFF) * (math.pi / CUTOFF)) + 1)
        atoms = parameters["embedding.weight"][species]
        for layer in range(layers):
            weight = _perceptron(parameters, f"filters.{layer}.", radial, silu)
            message = (atoms @ parameters[f"messages.{layer}.weight"])[source]
            received = jnp.zeros_like(atoms).at[to].add(message * weight * envelope[:, None])
            atoms = atoms + _perceptron(parameters, f"updates.{layer}.", received, silu)
        return _perceptron(parameters, "readout.", atoms, silu).sum()

    def loss(
        parameters: Arrays,
        species: Array,
        positions: Array,
        to: Array,
        source: Array,
        target: Array,
    ) -> Array:
        both = jax.value_and_grad(energy_of, 1)
        energy, slope = both(parameters, positions, species, to, source)
        return ((-slope - target) ** 2).mean() + energy * ENERGY_WEIGHT

    return loss


WORKLOADS: dict[str, Callable[[ModuleType, Problem], Callable[..., Array]]] = {
    "pinn": _pinn,
    "forces": _forces,
}
