"""Interatomic potentials, trained on forces: the loss holds a derivative of the network.

Each is a module from species, positions and edges to an energy. Edges are given: which atoms are
near each other is found once, outside of what is measured.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adjoint.bench.problems import Problem, perceptron, torch_value_and_grad
from adjoint.bench.workloads import CUTOFF, SPECIES, force_loss_inside, force_loss_outside
from adjoint.bench.zoo.scales import choose
from adjoint.transforms import value_and_grad

RADIAL = 20
# The side of the cube that an atom has to itself, in the unit of the cutoff radius.
SPACE_OF_AN_ATOM = 2.7


@dataclass(frozen=True)
class Molecules:
    """Atoms of several molecules, and all pairs within the cutoff, of one molecule each."""

    species: Tensor
    positions: Tensor
    to: Tensor
    source: Tensor
    forces: Tensor


def molecules(count: int, atoms: int, device: str) -> Molecules:
    """Random ones; made on the CPU, so that they are the same on each device."""
    total = count * atoms
    side = SPACE_OF_AN_ATOM * atoms ** (1 / 3)
    positions = torch.rand(total, 3) * side
    which = torch.arange(count).repeat_interleave(atoms)
    near = torch.cdist(positions, positions) < CUTOFF
    near = (near & (which[:, None] == which)).fill_diagonal_(False)
    to, source = near.nonzero().T.contiguous()
    species = torch.randint(0, SPECIES, (total,))
    forces = torch.randn(total, 3)
    moved = (x.to(device) for x in (species, positions, to, source, forces))
    return Molecules(*moved)


def trained_on_forces(net: nn.Module, given: Molecules) -> Problem:
    """A potential and the molecules that it is trained on."""
    batch = (given.species, given.positions, given.to, given.source, given.forces)
    inside = {
        "func_inductor": force_loss_inside(torch_value_and_grad),
        "func_adjoint": force_loss_inside(value_and_grad),
    }
    return Problem(net.to(given.positions.device), batch, force_loss_outside, inside)


def lengths(vectors: Tensor) -> Tensor:
    """The lengths of vectors, none of which is zero."""
    return vectors.square().sum(-1).add(1e-12).sqrt()


def envelope(distance: Tensor) -> Tensor:
    """A smooth factor: one at distance zero, and zero at the cutoff."""
    return 0.5 * (torch.cos(distance.clamp(max=CUTOFF) * (math.pi / CUTOFF)) + 1)


def bessel(distance: Tensor) -> Tensor:
    """Spherical Bessel functions of order zero that vanish at the cutoff."""
    number = torch.arange(1, RADIAL + 1, device=distance.device, dtype=distance.dtype)
    waves = torch.sin(distance[:, None] * number * (math.pi / CUTOFF)) / distance[:, None]
    return waves * envelope(distance)[:, None]


def shifted_softplus(x: Tensor) -> Tensor:
    return F.softplus(x) - math.log(2)


class ShiftedSoftplus(nn.Module):
    """SchNet's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return shifted_softplus(x)


class SchNet(nn.Module):
    """Continuous-filter convolutions: messages are multiplied by learned functions of distance."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, width)
        self.filters = nn.ModuleList(
            perceptron([RADIAL, width, width], ShiftedSoftplus) for _ in range(layers)
        )
        self.sent = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.received = nn.ModuleList(
            perceptron([width, width, width], ShiftedSoftplus) for _ in range(layers)
        )
        self.readout = perceptron([width, width // 2, 1], ShiftedSoftplus)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        distance = lengths(positions[source] - positions[to])
        centres = torch.linspace(0, CUTOFF, RADIAL, device=distance.device, dtype=distance.dtype)
        radial = torch.exp(-10 * (distance[:, None] - centres) ** 2)
        fading = envelope(distance)[:, None]
        atoms = self.embedding(species)
        for weight, sent, received in zip(self.filters, self.sent, self.received, strict=True):
            messages = sent(atoms)[source] * weight(radial) * fading
            gathered = torch.zeros_like(atoms).index_add(0, to, messages)
            atoms = atoms + received(gathered)
        energy: Tensor = self.readout(atoms).sum()
        return energy


class PaiNNLayer(nn.Module):
    """Messages between atoms that have scalars and vectors, then an update of each atom."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.scalars = perceptron([width, width, 3 * width], nn.SiLU)
        self.filters = nn.Linear(RADIAL, 3 * width)
        self.mixed = nn.Linear(width, 2 * width, bias=False)
        self.updated = perceptron([2 * width, width, 3 * width], nn.SiLU)

    def forward(
        self,
        scalars: Tensor,
        vectors: Tensor,
        radial: Tensor,
        direction: Tensor,
        edges: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        to, source = edges
        messages = self.scalars(scalars)[source] * self.filters(radial)
        own, along, passed = messages.split(self.width, 1)
        moved = direction[:, :, None] * along[:, None] + vectors[source] * passed[:, None]
        scalars = scalars.index_add(0, to, own)
        vectors = vectors.index_add(0, to, moved)
        left, right = self.mixed(vectors).split(self.width, 2)
        product = (left * right).sum(1)
        factors = self.updated(torch.cat([scalars, lengths(right.transpose(1, 2))], 1))
        added, scale, gate = factors.split(self.width, 1)
        return scalars + added + scale * product, vectors + gate[:, None] * left


class PaiNN(nn.Module):
    """A polarizable atom interaction network."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, width)
        self.layers = nn.ModuleList(PaiNNLayer(width) for _ in range(layers))
        self.readout = perceptron([width, width // 2, 1], nn.SiLU)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        difference = positions[source] - positions[to]
        distance = lengths(difference)
        direction, radial = difference / distance[:, None], bessel(distance)
        scalars = self.embedding(species)
        vectors = scalars.new_zeros(len(species), 3, scalars.shape[1])
        for layer in self.layers:
            scalars, vectors = layer(scalars, vectors, radial, direction, (to, source))
        energy: Tensor = self.readout(scalars).sum()
        return energy


def _sizes(device: str, small: bool) -> tuple[int, int, int, int]:
    """Molecules, atoms of each, width and layers."""
    return choose(device, small, full=(32, 20, 128, 3), cpu=(4, 12, 32, 3), tiny=(2, 5, 8, 2))


def _potential(make: Callable[[int, int], nn.Module]) -> Callable[[str, bool], Problem]:
    def problem(device: str, small: bool) -> Problem:
        count, atoms, width, layers = _sizes(device, small)
        torch.manual_seed(0)
        given = molecules(count, atoms, device)
        return trained_on_forces(make(width, layers), given)

    return problem


schnet = _potential(SchNet)
painn = _potential(PaiNN)


class DimeNet(nn.Module):
    """PyTorch Geometric's DimeNet++ on edges that are given.

    It looks for edges and triplets itself, by extensions of its own: its layers are called here in
    the order in which it calls them.
    """

    def __init__(self, width: int, layers: int, given: Molecules) -> None:
        super().__init__()
        models = importlib.import_module("torch_geometric.nn.models")
        self.potential = models.DimeNetPlusPlus(
            width,
            1,
            layers,
            int_emb_size=width // 2,
            basis_emb_size=8,
            out_emb_channels=width,
            num_spherical=4,
            num_radial=6,
            cutoff=CUTOFF,
        )
        # They begin as zero, and with them all gradients but their own.
        for block in self.potential.output_blocks:
            nn.init.xavier_uniform_(block.lin.weight)
        # Triplets k -> j -> i: pairs of edges of which one ends where the other begins.
        joined = (given.source[:, None] == given.to) & (given.to[:, None] != given.source)
        last, first = joined.nonzero().T.contiguous()
        self.last: Tensor
        self.first: Tensor
        self.register_buffer("last", last)
        self.register_buffer("first", first)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        net, last, first = self.potential, self.last, self.first
        distance = lengths(positions[to] - positions[source])
        onward = positions[source[last]] - positions[to[last]]
        back = positions[source[first]] - positions[to[first]]
        across = torch.linalg.cross(onward, back)
        angle = torch.atan2(lengths(across), (onward * back).sum(-1))
        radial = net.rbf(distance)
        spherical = net.sbf(distance, angle, first)
        x = net.emb(species, radial, to, source)
        total = net.output_blocks[0](x, radial, to, num_nodes=len(species))
        for block, output in zip(net.interaction_blocks, net.output_blocks[1:], strict=True):
            x = block(x, radial, spherical, first, last)
            total = total + output(x, radial, to, num_nodes=len(species))
        energy: Tensor = total.sum()
        return energy


def dimenet(device: str, small: bool) -> Problem:
    """DimeNet++ on fewer atoms: it has a message for each triplet."""
    count, atoms, width, layers = choose(
        device, small, full=(16, 16, 128, 3), cpu=(2, 8, 16, 2), tiny=(1, 5, 8, 1)
    )
    torch.manual_seed(0)
    given = molecules(count, atoms, device)
    return trained_on_forces(DimeNet(width, layers, given), given)
