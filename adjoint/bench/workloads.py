"""The four standard workloads in torch: networks trained on derivatives, and one that is not.

`pinn`    the residual of Burgers' equation, u_t + u u_x - nu u_xx: third derivatives in all;
`forces`  an interatomic potential trained on forces: energy -> forces -> loss -> parameters;
`gp`      the gradient penalty of a convolutional critic;
`gpt`     a training step of a small GPT: first derivatives only.

A loss is written twice. *Outside*: the network alone is compiled, and `torch.autograd` takes the
derivatives around it. *Inside*: the derivatives are part of the function that is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adjoint.bench.problems import Network, Parameters, Problem, perceptron, torch_value_and_grad
from adjoint.open_types import UserFunction
from adjoint.transforms import grad, value_and_grad

# Of Burgers' equation; then of the potential: cutoff radius, radial basis functions, species.
VISCOSITY = 0.01
CUTOFF = 5.0
RADIAL = 20
SPECIES = 10
ENERGY_WEIGHT = 1e-3


def pinn_sizes(device: str, small: bool) -> tuple[int, list[int]]:
    """Points, and the layers of the network."""
    points, width = (2048, 64) if small else (65536, 256) if device == "cuda" else (8192, 64)
    return points, [2, width, width, width, width, 1]


def pinn(device: str, small: bool) -> Problem:
    """Burgers' equation at random points (x, t)."""
    points, sizes = pinn_sizes(device, small)
    torch.manual_seed(0)
    net = perceptron(sizes, nn.Tanh).to(device)
    batch = (torch.rand(points, 2, device=device),)
    return Problem(
        net,
        batch,
        _burgers_outside,
        {"func_inductor": _burgers_by_point, "func_adjoint": _burgers_at_once},
    )


def _burgers_outside(net: Network, points: Tensor) -> Tensor:
    point = points.detach().requires_grad_()
    u = net(point)
    (slope,) = torch.autograd.grad(u.sum(), point, create_graph=True)
    u_x, u_t = slope[:, 0], slope[:, 1]
    (curvature,) = torch.autograd.grad(u_x.sum(), point, create_graph=True)
    return ((u_t + u[:, 0] * u_x - VISCOSITY * curvature[:, 0]) ** 2).mean()


def _burgers_by_point(net: nn.Module) -> UserFunction:
    """As torch.func has it: the residual of one point, mapped over the points."""

    def loss(parameters: Parameters, points: Tensor) -> Tensor:
        def u(point: Tensor) -> Tensor:
            values: Tensor = torch.func.functional_call(net, dict(parameters), (point[None],))
            return values[0, 0]

        slope = torch.func.grad(u)
        curvature = torch.func.grad(lambda point: slope(point)[0])

        def residual(point: Tensor) -> Tensor:
            first = slope(point)
            value: Tensor = first[1] + u(point) * first[0] - VISCOSITY * curvature(point)[0]
            return value

        residuals: Tensor = torch.func.vmap(residual)(points)
        return residuals.square().mean()

    return loss


def _burgers_at_once(net: nn.Module) -> UserFunction:
    """All points in one batch: the sum over points has each point's slope as its gradient."""

    def loss(parameters: Parameters, points: Tensor) -> Tensor:
        def u(points: Tensor) -> Tensor:
            values: Tensor = torch.func.functional_call(net, dict(parameters), (points,))
            return values[:, 0]

        slope = grad(lambda points: u(points).sum())
        curvature = grad(lambda points: slope(points)[:, 0].sum())
        first = slope(points)
        residual = first[:, 1] + u(points) * first[:, 0] - VISCOSITY * curvature(points)[:, 0]
        squares: Tensor = residual**2
        return squares.mean()

    return loss


class Potential(nn.Module):
    """The energy of atoms: messages along edges, weighted by learned functions of distance."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, width)
        self.filters = nn.ModuleList(
            perceptron([RADIAL, width, width], nn.SiLU) for _ in range(layers)
        )
        self.messages = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(
            perceptron([width, width, width], nn.SiLU) for _ in range(layers)
        )
        self.readout = perceptron([width, width // 2, 1], nn.SiLU)

    def forward(self, species: Tensor, positions: Tensor, to: Tensor, source: Tensor) -> Tensor:
        distance = (positions[to] - positions[source]).pow(2).sum(-1).add(1e-6).sqrt()
        centres = torch.linspace(0, CUTOFF, RADIAL, device=distance.device, dtype=distance.dtype)
        radial = torch.exp(-4 * (distance[:, None] - centres) ** 2)
        envelope = 0.5 * (torch.cos(distance.clamp(max=CUTOFF) * (math.pi / CUTOFF)) + 1)
        atoms = self.embedding(species)
        for weight, message, update in zip(self.filters, self.messages, self.updates, strict=True):
            sent = message(atoms)[source] * weight(radial) * envelope[:, None]
            atoms = atoms + update(torch.zeros_like(atoms).index_add(0, to, sent))
        energy: Tensor = self.readout(atoms).sum()
        return energy


def forces_sizes(device: str, small: bool) -> tuple[int, int, int, int]:
    """Atoms, edges, width and layers."""
    if small:
        return 64, 1024, 32, 2
    return (4096, 131072, 128, 3) if device == "cuda" else (512, 12288, 64, 3)


def forces(device: str, small: bool) -> Problem:
    """A random graph of atoms with random target forces."""
    atoms, edges, width, layers = forces_sizes(device, small)
    torch.manual_seed(0)
    net = Potential(width, layers).to(device)
    species = torch.randint(0, SPECIES, (atoms,), device=device)
    positions = torch.rand(atoms, 3, device=device) * 8
    to = torch.randint(0, atoms, (edges,), device=device)
    source = torch.randint(0, atoms, (edges,), device=device)
    target = torch.randn(atoms, 3, device=device)
    return Problem(
        net,
        (species, positions, to, source, target),
        force_loss_outside,
        {
            "func_inductor": force_loss_inside(torch_value_and_grad),
            "func_adjoint": force_loss_inside(value_and_grad),
        },
    )


def force_loss_outside(
    net: Network, species: Tensor, positions: Tensor, to: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    moved = positions.detach().requires_grad_()
    energy = net(species, moved, to, source)
    (slope,) = torch.autograd.grad(energy, moved, create_graph=True)
    return ((-slope - target) ** 2).mean() + energy * ENERGY_WEIGHT


def force_loss_inside(value_and_grad: UserFunction) -> Callable[[nn.Module], UserFunction]:
    def of_network(net: nn.Module) -> UserFunction:
        def loss(
            parameters: Parameters,
            species: Tensor,
            positions: Tensor,
            to: Tensor,
            source: Tensor,
            target: Tensor,
        ) -> Tensor:
            def energy_at(moved: Tensor) -> object:
                args = (species, moved, to, source)
                return torch.func.functional_call(net, dict(parameters), args)

            energy, slope = value_and_grad(energy_at)(positions)
            total: Tensor = ((-slope - target) ** 2).mean() + energy * ENERGY_WEIGHT
            return total

        return loss

    return of_network


def gp(device: str, small: bool) -> Problem:
    """A critic of 64 x 64 images whose input gradients should have norm one."""
    images, width = (4, 16) if small else (64, 64) if device == "cuda" else (8, 32)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.GroupNorm(8, 2 * width),
        nn.SiLU(),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.GroupNorm(8, 4 * width),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(4 * width * 64, 1),
    ).to(device)
    batch = (torch.randn(images, 3, 64, 64, device=device),)
    inside = {
        "func_inductor": _penalty_inside(torch_value_and_grad),
        "func_adjoint": _penalty_inside(value_and_grad),
    }
    return Problem(net, batch, _penalty_outside, inside)


def _penalty(score: Tensor, slope: Tensor) -> Tensor:
    distance: Tensor = slope.flatten(1).norm(dim=1) - 1
    return (distance**2).mean() + score / slope.shape[0]


def _penalty_outside(net: Network, images: Tensor) -> Tensor:
    seen = images.detach().requires_grad_()
    score = net(seen).sum()
    (slope,) = torch.autograd.grad(score, seen, create_graph=True)
    return _penalty(score, slope)


def _penalty_inside(value_and_grad: UserFunction) -> Callable[[nn.Module], UserFunction]:
    def of_network(net: nn.Module) -> UserFunction:
        def loss(parameters: Parameters, images: Tensor) -> Tensor:
            def score_of(seen: Tensor) -> object:
                return torch.func.functional_call(net, dict(parameters), (seen,)).sum()

            score, slope = value_and_grad(score_of)(images)
            return _penalty(score, slope)

        return loss

    return of_network


class Block(nn.Module):
    """Causal attention, then two linear layers, each added to its normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.before_linear = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).split(width, 2)
        by_head = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(by_head).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.contract(F.gelu(self.expand(self.before_linear(x))))
        return y


class Transformer(nn.Module):
    """The loss of predicting the next token."""

    def __init__(self, tokens: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, text: Tensor, target: Tensor) -> Tensor:
        x = self.token(text) + self.position(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1)
        if logits.dtype != torch.float64:
            logits = logits.float()  # Autocast made them bfloat16.
        return F.cross_entropy(logits, target.flatten())


def gpt(device: str, small: bool) -> Problem:
    """Random text; on CUDA GPT-2's own size in bfloat16."""
    full = device == "cuda" and not small
    tokens, width, heads, layers, length, batch = (
        (50304, 768, 12, 12, 1024, 16) if full else (512, 128, 4, 4, 128, 4)
    )
    torch.manual_seed(0)
    net = Transformer(tokens, width, heads, layers, length).to(device)
    text = torch.randint(0, tokens, (batch, length), device=device)
    target = torch.randint(0, tokens, (batch, length), device=device)
    return Problem(net, (text, target), _next_token_loss, {}, mixed=device == "cuda")


def _next_token_loss(net: Network, text: Tensor, target: Tensor) -> Tensor:
    return net(text, target)


WORKLOADS: dict[str, Callable[[str, bool], Problem]] = {
    "pinn": pinn,
    "forces": forces,
    "gp": gp,
    "gpt": gpt,
}
