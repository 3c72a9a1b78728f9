"""Interaction layers of equivariant potentials, as e3nn's models have them.

The features of an atom are tensors of angular momentum l = 0, 1, 2, each in several channels. A
message is the tensor product of the sender's features and the spherical harmonics of the edge: for
each path (l of the sender, l of the edge, l of the message) an einsum with the coefficients of
Clebsch and Gordan and a learned function of distance, on slices that are concatenated again. Only
paths with even l1 + l2 + l3 keep parity; for these the coefficients are, up to scale, integrals of
three spherical harmonics, which are computed here.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math

import torch
from torch import Tensor, nn

from adjoint.bench.problems import Problem, perceptron
from adjoint.bench.workloads import SPECIES
from adjoint.bench.zoo.molecules import RADIAL, bessel, lengths, molecules, trained_on_forces
from adjoint.bench.zoo.scales import choose

MAX_L = 2
DEGREES = range(MAX_L + 1)
PATHS = tuple(path for path in itertools.product(DEGREES, repeat=3) if sum(path) % 2 == 0)
PATHS = tuple((a, b, c) for a, b, c in PATHS if abs(a - b) <= c <= a + b)

# A polynomial in x, y, z: coefficients by exponents.
Polynomial = dict[tuple[int, int, int], float]

_S3, _S5, _S15 = math.sqrt(3), math.sqrt(5), math.sqrt(15)
HARMONICS: tuple[tuple[Polynomial, ...], ...] = (
    ({(0, 0, 0): 1.0},),
    ({(1, 0, 0): _S3}, {(0, 1, 0): _S3}, {(0, 0, 1): _S3}),
    (
        {(1, 1, 0): _S15},
        {(0, 1, 1): _S15},
        {(0, 0, 2): _S5, (2, 0, 0): -_S5 / 2, (0, 2, 0): -_S5 / 2},
        {(1, 0, 1): _S15},
        {(2, 0, 0): _S15 / 2, (0, 2, 0): -_S15 / 2},
    ),
)
"""Real spherical harmonics of unit vectors; the mean of the square of each is one."""


def spherical_harmonics(direction: Tensor) -> Tensor:
    """All of them, to l = MAX_L, in the last dimension."""
    x, y, z = direction.unbind(-1)
    second = [
        _S15 * x * y,
        _S15 * y * z,
        _S5 / 2 * (2 * z * z - x * x - y * y),
        _S15 * x * z,
        _S15 / 2 * (x * x - y * y),
    ]
    return torch.stack([torch.ones_like(x), _S3 * x, _S3 * y, _S3 * z, *second], -1)


def _times(p: Polynomial, q: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for (exponents, a), (others, b) in itertools.product(p.items(), q.items()):
        i, j, k = (m + n for m, n in zip(exponents, others, strict=True))
        product[i, j, k] = product.get((i, j, k), 0.0) + a * b
    return product


def _mean_on_sphere(p: Polynomial) -> float:
    """The mean of x^i y^j z^k is (i-1)!! (j-1)!! (k-1)!! / (i+j+k+1)!!, or zero if one is odd."""
    return sum(
        a
        * math.prod(map(_double_factorial, (i - 1, j - 1, k - 1)))
        / _double_factorial(i + j + k + 1)
        for (i, j, k), a in p.items()
        if i % 2 == j % 2 == k % 2 == 0
    )


def _double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))


@functools.cache
def coefficients(path: tuple[int, int, int]) -> Tensor:
    """Clebsch-Gordan coefficients of a path; the sum of their squares is 2 l3 + 1."""
    left, right, out = (HARMONICS[degree] for degree in path)
    values = [
        [[_mean_on_sphere(_times(_times(p, q), r)) for r in out] for q in right] for p in left
    ]
    found = torch.tensor(values, dtype=torch.float64)
    scaled: Tensor = found * math.sqrt(len(out)) / found.norm()
    return scaled


def part(degree: int) -> slice:
    """Where the components of one l are among all."""
    return slice(degree**2, (degree + 1) ** 2)


class Interaction(nn.Module):
    """Messages by tensor products, a linear map of each l, and a gate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.weights = perceptron([RADIAL, 64, channels * len(PATHS)], nn.SiLU)
        self.before = nn.ParameterList(self._matrix(channels) for _ in DEGREES)
        self.after = nn.ParameterList(
            self._matrix(channels * sum(path[2] == degree for path in PATHS)) for degree in DEGREES
        )
        self.own = nn.ParameterList(self._matrix(channels) for _ in DEGREES)
        self.gates = nn.Linear(channels, channels * MAX_L)
        for number, path in enumerate(PATHS):
            self.register_buffer(f"path_{number}", coefficients(path).float())

    def _matrix(self, inputs: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(inputs, self.channels) / math.sqrt(inputs))

    def forward(
        self, atoms: Tensor, harmonics: Tensor, radial: Tensor, edges: tuple[Tensor, Tensor]
    ) -> Tensor:
        to, source = edges
        sent = _linear(atoms, list(self.before))[source]
        weights = self.weights(radial).view(-1, len(PATHS), self.channels)
        messages: list[list[Tensor]] = [[] for _ in DEGREES]
        for number, (left, right, out) in enumerate(PATHS):
            message = torch.einsum(
                "eci,ej,ijk->eck",
                sent[:, :, part(left)],
                harmonics[:, part(right)],
                self.get_buffer(f"path_{number}"),
            )
            messages[out].append(message * weights[:, number, :, None])
        # The messages of one l are further channels of it.
        mixed = [
            torch.einsum("eck,cd->edk", torch.cat(own, 1), matrix)
            for own, matrix in zip(messages, self.after, strict=True)
        ]
        gathered = torch.zeros_like(atoms).index_add(0, to, torch.cat(mixed, 2))
        gathered = gathered + _linear(atoms, list(self.own))
        scalars = gathered[:, :, 0]
        gates = torch.sigmoid(self.gates(scalars)).split(self.channels, 1)
        gated = [
            gathered[:, :, part(degree)] * gate[:, :, None]
            for degree, gate in zip(DEGREES[1:], gates, strict=True)
        ]
        return torch.cat([nn.functional.silu(scalars)[:, :, None], *gated], 2)


def _linear(atoms: Tensor, matrices: list[Tensor]) -> Tensor:
    """The channels of each l are mixed by a matrix of its own."""
    mixed = [
        torch.einsum("eck,cd->edk", atoms[:, :, part(degree)], matrix)
        for degree, matrix in enumerate(matrices)
    ]
    return torch.cat(mixed, 2)


class EquivariantPotential(nn.Module):
    """Two interaction layers, written for the zoo."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, channels)
        self.layers = nn.ModuleList(Interaction(channels) for _ in range(layers))
        self.readout = perceptron([channels * len(DEGREES), channels, 1], nn.SiLU)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        difference = positions[source] - positions[to]
        distance = lengths(difference)
        harmonics = spherical_harmonics(difference / distance[:, None])
        radial = bessel(distance)
        scalars = self.embedding(species)[:, :, None]
        others = scalars.new_zeros(*scalars.shape[:2], (MAX_L + 1) ** 2 - 1)
        atoms = torch.cat([scalars, others], 2)
        for layer in self.layers:
            atoms = layer(atoms, harmonics, radial, (to, source))
        squares = [atoms[:, :, part(degree)].square().sum(2) for degree in DEGREES[1:]]
        energy: Tensor = self.readout(torch.cat([atoms[:, :, 0], *squares], 1)).sum()
        return energy


class E3nnInteraction(nn.Module):
    """The same layer of e3nn's parts: linear, a tensor product with external weights, gate."""

    def __init__(self, inputs: str, channels: int) -> None:
        super().__init__()
        o3, gate = importlib.import_module("e3nn.o3"), importlib.import_module("e3nn.nn").Gate
        before = o3.Irreps(inputs)
        harmonics = o3.Irreps.spherical_harmonics(MAX_L)
        kept = o3.Irreps("+".join(f"{channels}x{each}{'eo'[each % 2]}" for each in DEGREES))
        scalars = o3.Irreps(f"{channels}x0e")
        gated = o3.Irreps([(mul, ir) for mul, ir in kept if ir.l > 0])
        gates = o3.Irreps(f"{gated.num_irreps}x0e")
        silu, sigmoid = torch.nn.functional.silu, torch.sigmoid
        self.gate = gate(scalars, [silu], gates, [sigmoid], gated)
        instructions: list[tuple[int, int, int, str, bool]] = []
        middle: list[tuple[int, object]] = []
        for (i, (mul, left)), (j, (_, right)) in itertools.product(
            enumerate(before), enumerate(harmonics)
        ):
            for out in left * right:
                if out in kept:
                    instructions.append((i, j, len(middle), "uvu", True))
                    middle.append((mul, out))
        products = o3.Irreps(middle)
        self.sent = o3.Linear(before, before)
        self.product = o3.TensorProduct(
            before, harmonics, products, instructions, shared_weights=False, internal_weights=False
        )
        self.weights = perceptron([RADIAL, 64, self.product.weight_numel], nn.SiLU)
        self.received = o3.Linear(products.simplify(), self.gate.irreps_in)
        self.own = o3.Linear(before, self.gate.irreps_in)

    def forward(
        self, atoms: Tensor, harmonics: Tensor, radial: Tensor, edges: tuple[Tensor, Tensor]
    ) -> Tensor:
        to, source = edges
        messages = self.product(self.sent(atoms)[source], harmonics, self.weights(radial))
        gathered = messages.new_zeros(len(atoms), messages.shape[1]).index_add(0, to, messages)
        passed: Tensor = self.gate(self.received(gathered) + self.own(atoms))
        return passed


class E3nnPotential(nn.Module):
    """Two interaction layers of e3nn."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        o3 = importlib.import_module("e3nn.o3")
        self.embedding = nn.Embedding(SPECIES, channels)
        self.channels = channels
        self.harmonics = o3.SphericalHarmonics(list(DEGREES), True, "component")
        inputs = f"{channels}x0e"
        built: list[E3nnInteraction] = []
        for _ in range(layers):
            built.append(E3nnInteraction(inputs, channels))
            inputs = str(built[-1].gate.irreps_out)
        self.layers = nn.ModuleList(built)
        self.readout = perceptron([channels, channels // 2, 1], nn.SiLU)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        difference = positions[source] - positions[to]
        harmonics, radial = self.harmonics(difference), bessel(lengths(difference))
        atoms = self.embedding(species)
        for layer in self.layers:
            atoms = layer(atoms, harmonics, radial, (to, source))
        energy: Tensor = self.readout(atoms[:, : self.channels]).sum()
        return energy


def _sizes(device: str, small: bool) -> tuple[int, int, int]:
    """Molecules, atoms of each and channels."""
    return choose(device, small, full=(32, 20, 64), cpu=(2, 10, 16), tiny=(1, 4, 4))


def equivariant(device: str, small: bool) -> Problem:
    """The potential that is written here."""
    count, atoms, channels = _sizes(device, small)
    torch.manual_seed(0)
    given = molecules(count, atoms, device)
    return trained_on_forces(EquivariantPotential(channels, 2), given)


def e3nn(device: str, small: bool) -> Problem:
    """The potential made of the parts of e3nn."""
    count, atoms, channels = _sizes(device, small)
    torch.manual_seed(0)
    given = molecules(count, atoms, device)
    return trained_on_forces(E3nnPotential(channels, 2), given)
