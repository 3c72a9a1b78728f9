"""A potential trained on forces, for batches of which no two have the same sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from adjoint import backend
from adjoint.compiler import Compiler
from adjoint.runtime import sized_programs

WIDTH = 16
RADIAL = 8
SPECIES = 5

# Molecules, atoms, edges.
Sizes = tuple[int, int, int]

# Sizes that torch likes to treat in their own way, and sizes equal to those of the network.
NOTABLE: list[Sizes] = [
    (1, 1, 1),
    (1, 1, 0),
    (2, 3, 0),
    (1, 0, 0),
    (3, 0, 0),
    (1, 2, 1),
    (4, 4, 4),
    (WIDTH, WIDTH, WIDTH),
    (RADIAL, RADIAL, WIDTH),
    (3, 16, 3),
]


class Potential(nn.Module):
    """Continuous-filter convolutions; an energy for each molecule."""

    centers: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, WIDTH)
        self.register_buffer("centers", torch.linspace(0, 5, RADIAL))
        self.filters = nn.ModuleList(two_layers(RADIAL, WIDTH) for _ in range(2))
        self.messages = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.updates = nn.ModuleList(two_layers(WIDTH, WIDTH) for _ in range(2))
        self.readout = two_layers(WIDTH, 1)

    def forward(
        self,
        species: Tensor,
        positions: Tensor,
        to: Tensor,
        source: Tensor,
        molecule: Tensor,
        offsets: Tensor,
    ) -> Any:
        gap = positions[to] - positions[source]
        distance = (gap.pow(2).sum(-1) + 1e-6).sqrt()
        radial = torch.exp(-((distance[:, None] - self.centers) ** 2))
        envelope = 0.5 * (torch.cos(distance * torch.pi / 5) + 1) * (distance < 5)
        atoms = self.embedding(species)
        for weight, message, update in zip(self.filters, self.messages, self.updates, strict=True):
            sent = message(atoms)[source] * weight(radial) * envelope[:, None]
            atoms = atoms + update(torch.zeros_like(atoms).index_add(0, to, sent))
        return offsets.index_add(0, molecule, self.readout(atoms).squeeze(-1))


def two_layers(entering: int, leaving: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(entering, WIDTH), nn.SiLU(), nn.Linear(WIDTH, leaving))


def batch_of(sizes: Sizes, seed: int) -> tuple[Tensor, ...]:
    molecules, atoms, edges = sizes
    torch.manual_seed(seed)
    return (
        torch.randint(0, SPECIES, (atoms,)),
        torch.rand(atoms, 3, dtype=torch.float64) * 4,
        torch.randint(0, max(1, atoms), (edges,)),
        torch.randint(0, max(1, atoms), (edges,)),
        torch.randint(0, molecules, (atoms,)),
        torch.randn(molecules, dtype=torch.float64),
    )


def step(net: nn.Module, energies_of: Any, batch: tuple[Tensor, ...]) -> list[Tensor]:
    """The loss on forces and energies, the forces, and the gradients of all parameters."""
    net.zero_grad()
    species, positions, *rest = batch
    moved = positions.detach().requires_grad_()
    energies = energies_of(species, moved, *rest)
    (slope,) = torch.autograd.grad(energies.sum(), moved, create_graph=True)
    loss = (slope - positions).pow(2).sum() + 0.1 * energies.pow(2).mean()
    loss.backward()
    gradients = [each.grad for each in net.parameters() if each.grad is not None]
    return [loss.detach(), slope.detach(), *(gradient.clone() for gradient in gradients)]


@dataclass
class Count:
    graphs: int = 0
    programs: int = 0


@contextmanager
def compilations() -> Iterator[Count]:
    """What is compiled; nothing may run op by op."""
    count = Count()
    original = backend.compile_graph

    def graph(*args: Any, **options: Any) -> Any:
        count.graphs += 1
        return original(*args, **options)

    native = Compiler.native

    def program(*args: Any, **options: Any) -> Any:
        count.programs += 1
        return native(*args, **options)

    torch._dynamo.reset()
    with (
        mock.patch.object(backend, "compile_graph", graph),
        mock.patch.object(Compiler, "native", program),
        mock.patch.object(
            sized_programs, "evaluate_taking", side_effect=AssertionError("op by op")
        ),
        torch._dynamo.config.patch(suppress_errors=False),
    ):
        yield count


def different_sizes(count: int) -> list[Sizes]:
    """In the first two, all sizes differ: the automatic switch then makes all of them symbols."""
    chosen = random.Random(0)
    found: dict[Sizes, None] = dict.fromkeys([(3, 7, 20), (2, 9, 31), *NOTABLE])
    while len(found) < count:
        found[chosen.randint(1, 12), chosen.randint(1, 60), chosen.randint(0, 300)] = None
    return list(found)


def train(dynamic: bool | None, count: int) -> None:
    torch.manual_seed(0)
    net = Potential().double()
    sizes = different_sizes(count)
    assert len(set(sizes)) == count
    switch = 1 if dynamic else 2
    with compilations() as compiled:
        energies_of = torch.compile(net, backend="adjoint", dynamic=dynamic, fullgraph=True)
        for seed, each in enumerate(sizes):
            batch = batch_of(each, seed)
            expected = step(net, net, batch)
            for ours, eager in zip(step(net, energies_of, batch), expected, strict=True):
                torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9, msg=str(each))
        assert compiled.graphs == switch
        # The energy, its derivative, and the backward graphs of both.
        assert compiled.programs == 4 * switch


def test_twenty_sizes() -> None:
    """The first two are compiled: static sizes, then symbolic ones."""
    train(None, 20)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
def test_three_hundred_sizes(dynamic: bool | None) -> None:
    train(dynamic, 300)


def test_the_first_batch_may_be_the_smallest() -> None:
    net = Potential().double()
    with compilations() as compiled:
        energies_of = torch.compile(net, backend="adjoint", dynamic=True, fullgraph=True)
        for seed, each in enumerate([(1, 1, 1), (1, 0, 0), (3, 7, 20)]):
            batch = batch_of(each, seed)
            expected = step(net, net, batch)
            for ours, eager in zip(step(net, energies_of, batch), expected, strict=True):
                torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)
        assert compiled.graphs == 1
