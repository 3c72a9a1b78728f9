"""What users reported that torch.compile cannot do: their programs, through the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import adjoint.backend as backend
from tests.parity import leaf, plain

grad = torch.autograd.grad


@pytest.fixture(autouse=True)
def compiled_graphs() -> Iterator[list[Any]]:
    """The graphs that the backend compiled: a program that runs in eager would agree with eager."""
    made: list[Any] = []
    original = backend.compile_graph

    def counting(*args: Any, **kwargs: Any) -> Any:
        program = original(*args, **kwargs)
        made.append(program)
        return program

    torch._dynamo.reset()
    with (
        mock.patch.object(backend, "compile_graph", counting),
        torch._dynamo.config.patch(suppress_errors=False),
    ):
        yield made
    assert made, "the backend compiled nothing"


def compile(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="adjoint", **options)


def test_double_backward_of_a_compiled_function() -> None:
    """pytorch 91469: the second derivative was silently wrong, and is an error since."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * y**3).exp().sum()

    x, y = leaf(4), leaf(4)
    results = []
    for run in (function, compile(function, fullgraph=True)):
        first = grad(run(x, y), [x, y], create_graph=True)
        second = grad(first[0].square().sum() + first[1].cos().sum(), [x, y], create_graph=True)
        third = grad(second[0].sum() * second[1].sum(), [x, y])
        results.append((first, second, third))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("function", [torch.mm, torch.matmul, lambda x, y: (x @ y).relu()])
def test_gradients_keep_their_history(function: Callable[..., Tensor]) -> None:
    """pytorch 181581: gradients with create_graph lost their history."""
    x, y = leaf(3, 3), leaf(3, 3)
    results = []
    for run in (function, compile(function)):
        first = grad(run(x, y).square().sum(), [x, y], create_graph=True)
        assert all(each.requires_grad for each in first)
        results.append(grad(first[0].sum() + first[1].square().sum(), [x, y]))
    torch.testing.assert_close(*results)


def test_a_gradient_inside_and_one_outside() -> None:
    """pytorch 183603: a gradient in a compiled function, then one of its result."""

    def force(x: Tensor, w: Tensor) -> Tensor:
        energy = torch.tanh(x @ w).square().sum()
        (slope,) = grad(energy, x, create_graph=True)
        return slope

    x, w = leaf(5, 3), leaf(3, 3)
    results = [
        grad(run(x, w).square().sum(), [x, w], create_graph=True) for run in (force, compile(force))
    ]
    torch.testing.assert_close(*results)
    thirds = [grad(each[1].sin().sum(), [x, w]) for each in results]
    torch.testing.assert_close(*thirds)


def test_the_hessian_of_a_hessian() -> None:
    """pytorch 154284: torch.compile of hessian(hessian(f))."""

    def function(x: Tensor) -> Tensor:
        return (torch.tanh(x) ** 2).prod()

    nested = torch.func.hessian(torch.func.hessian(function))
    x = plain(3)
    torch.testing.assert_close(compile(nested)(x), nested(x))


def test_the_hessian_of_a_hessian_of_a_compiled_function() -> None:
    """pytorch 154284, from outside: torch.func around what torch.compile made."""

    def function(x: Tensor) -> Tensor:
        return (torch.tanh(x) ** 2).prod()

    nested = torch.func.hessian(torch.func.hessian(function))
    module = compile(function)
    x = leaf(3)
    (first,) = grad(module(x), x, create_graph=True)
    rows = [grad(each, x, create_graph=True)[0] for each in first]
    torch.testing.assert_close(torch.stack(rows), torch.func.hessian(function)(x.detach()))
    fourth = [
        [
            [grad(third, x, create_graph=True)[0] for third in grad(b, x, create_graph=True)[0]]
            for b in a
        ]
        for a in rows
    ]
    stacked = torch.stack([torch.stack([torch.stack(b) for b in a]) for a in fourth])
    torch.testing.assert_close(stacked, nested(x.detach()))


def test_a_laplacian_through_functional_calls() -> None:
    """pytorch 133230: second derivatives of a compiled module in a physics-informed loss."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def residual(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x = torch.linspace(0, 1, 10, dtype=torch.float64).view(5, 2).requires_grad_()
        u = run(x)
        (du,) = grad(u.sum(), x, create_graph=True)
        parts = [grad(du[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2)]
        loss = (parts[0] + parts[1] + u.squeeze(1)).square().mean()
        return [loss, *grad(loss, list(module.parameters()), allow_unused=True)]

    theirs = residual(module)
    mine = residual(compile(module))
    torch.testing.assert_close(mine, theirs)


class Potential(nn.Module):
    """Energies of atoms from distances, and forces as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.update = nn.Sequential(nn.Linear(17, 16), nn.SiLU(), nn.Linear(16, 8))
        self.readout = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))

    def energy(self, kinds: Tensor, positions: Tensor, edges: Tensor) -> Tensor:
        sender, receiver = edges
        distance = (positions[sender] - positions[receiver]).norm(dim=-1, keepdim=True)
        h = self.embedding(kinds)
        message = self.update(torch.cat([h[sender], h[receiver], distance], -1))
        h = h + torch.zeros_like(h).index_add(0, receiver, message * torch.exp(-distance))
        return self.readout(h).sum()  # type: ignore[no-any-return]

    def forward(self, kinds: Tensor, positions: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.energy(kinds, positions, edges)
        (gradient,) = grad(energy, positions, create_graph=True)
        return energy, -gradient


@pytest.mark.parametrize("outside", [False, True])
def test_training_on_forces(outside: bool) -> None:
    """torchmd-net 307: train a potential on forces, compiled as a whole or the energy alone."""
    torch.manual_seed(0)
    model = Potential().double()
    kinds, edges = torch.tensor([0, 1, 2, 1]), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    positions, wanted = leaf(4, 3), plain(4, 3)

    def losses(run: Callable[..., Any]) -> tuple[Tensor, ...]:
        energy, forces = run(kinds, positions, edges)
        loss = energy**2 + (forces - wanted).square().sum()
        return (loss, *grad(loss, list(model.parameters()), allow_unused=True))

    theirs = losses(model)
    if outside:
        compiled_energy = compile(model.energy)

        def run(*args: Any) -> Any:
            energy = compiled_energy(*args)
            (gradient,) = grad(energy, positions, create_graph=True)
            return energy, -gradient

        mine = losses(run)
    else:
        mine = losses(compile(model))
    torch.testing.assert_close(mine, theirs)


def test_steps_of_an_optimizer_on_forces() -> None:
    """torchmd-net 307: the loop itself, several steps and sizes."""
    torch.manual_seed(0)
    eager, compiled = Potential().double(), Potential().double()
    compiled.load_state_dict(eager.state_dict())
    runs = [(eager, eager), (compiled, compile(compiled))]
    optimizers = [torch.optim.SGD(module.parameters(), lr=1e-2) for module, _ in runs]
    for atoms in (4, 4, 6, 5):
        kinds, positions = torch.arange(atoms) % 4, plain(atoms, 3)
        edges = torch.stack([torch.arange(atoms), (torch.arange(atoms) + 1) % atoms])
        for (_, run), optimizer in zip(runs, optimizers, strict=True):
            optimizer.zero_grad()
            energy, forces = run(kinds, positions.clone().requires_grad_(), edges)
            (energy**2 + forces.square().sum()).backward()
            optimizer.step()
    for mine, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_scalar_programs_to_order_four(order: int) -> None:
    def function(x: Tensor) -> Tensor:
        return x**4 + torch.tanh(x) * x

    x = leaf(3)
    results = []
    for run in (function, compile(function)):
        value = run(x)
        for _ in range(order):
            (value,) = grad(value.sum(), x, create_graph=True)
        results.append(value)
    torch.testing.assert_close(*results)


def test_scatter_of_size_one_then_gather() -> None:
    """pytorch 191571: scatter_add along an axis of size 1, then gather, gave zeros."""

    def function(x: Tensor, index: Tensor) -> Tensor:
        pooled = torch.zeros(1, 3, dtype=x.dtype).scatter_add(0, index, x)
        return pooled.gather(0, index).square().sum()

    x, index = leaf(4, 3), torch.zeros(4, 3, dtype=torch.int64)
    results = []
    for run in (function, compile(function)):
        (first,) = grad(run(x, index), x, create_graph=True)
        results.append((first, grad(first.sin().sum(), x)[0]))
    torch.testing.assert_close(*results)
    assert results[1][0].any()


def test_a_modulated_layer_norm() -> None:
    """pytorch 193061: gradients of x.layer_norm() * (1 + scale) + shift were wrong."""

    def function(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x, (4,))
        return (normed * (1 + scale) + shift).square().sum()

    given = [leaf(2, 3, 4), leaf(2, 1, 4), leaf(2, 1, 4)]
    results = []
    for run in (function, compile(function)):
        first = grad(run(*given), given, create_graph=True)
        results.append((first, grad(first[0].sin().sum(), given, allow_unused=True)))
    torch.testing.assert_close(*results)


def test_forward_mode_twice() -> None:
    """pytorch 190856: jacfwd of jacfwd crashed."""

    def function(x: Tensor) -> Tensor:
        return x.sin() * x.sum()

    nested = torch.func.jacfwd(torch.func.jacfwd(function))
    x = plain(3)
    torch.testing.assert_close(compile(nested)(x), nested(x))


def test_a_gradient_with_an_in_place_add() -> None:
    """pytorch 136662: torch.func.grad of a compiled function with an in-place add was wrong."""

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        y += x
        y.mul_(x)
        return y.sum()

    x = plain(3)
    compiled = compile(lambda x: torch.func.grad(function)(x))
    torch.testing.assert_close(compiled(x), torch.func.grad(function)(x))


def test_a_batch_of_jacobians() -> None:
    """pytorch 154036: vmap of jacrev had the wrong shape."""

    def function(x: Tensor) -> Tensor:
        return torch.stack([x.prod(), x.sum()])

    nested = torch.func.vmap(torch.func.jacrev(function))
    xs = plain(5, 3)
    torch.testing.assert_close(compile(nested)(xs), nested(xs))


def test_a_batch_of_cotangents() -> None:
    """pytorch 138422: vmap over a compiled backward."""
    x = leaf(3)
    compiled = compile(lambda x: x.sin() * x.sum())
    out = compiled(x)
    basis = torch.eye(3, dtype=torch.float64)
    (mine,) = grad(out, x, basis, is_grads_batched=True)
    expected = torch.func.jacrev(lambda x: x.sin() * x.sum())(x.detach())
    torch.testing.assert_close(mine, expected)
