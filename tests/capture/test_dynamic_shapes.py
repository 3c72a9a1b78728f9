from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import adjoint
from adjoint import backend
from adjoint.backend import compile_graph
from adjoint.graph.descriptors import SymbolicSize

Program = Callable[..., Any]


class Counting:
    """Compiles, and counts the graphs."""

    def __init__(self, function: Program, **settings: Any) -> None:
        torch._dynamo.reset()
        self.graphs = 0
        self.compiled = adjoint.compile(function, **settings)

    def __call__(self, *args: Any) -> Any:
        def count(*given: Any, **options: Any) -> Any:
            self.graphs += 1
            return compile_graph(*given, **options)

        with mock.patch.object(backend, "compile_graph", count):
            return self.compiled(*args)


def project(x: Tensor, y: Tensor) -> Any:
    return (x @ y.t()).tanh().sum(0), x.shape[0] * y.shape[0]


def gather(x: Tensor, index: Tensor) -> Any:
    distance = (x[index] - x[index.flip(0)]).pow(2).sum(-1)
    return torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, index, distance)


def write(x: Tensor, y: Tensor) -> Any:
    x[:, 0].add_(y.sum())
    return x.view(-1), x * 2


def attend(x: Tensor, y: Tensor) -> Any:
    return nn.functional.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None])


def row(size: int) -> Tensor:
    return torch.randn(size, 3)


# Sizes of 0 and 1, equal sizes, primes.
PAIRS = [(4, 5), (5, 4), (3, 3), (7, 1), (1, 7), (1, 1), (13, 11), (0, 5), (2, 2)]


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (project, lambda a, b: (row(a).requires_grad_(), row(b).requires_grad_())),
        (write, lambda a, b: (row(a), row(b))),
        (attend, lambda a, b: (row(a), row(b))),
        (gather, lambda a, b: (row(a), torch.arange(b) % max(a, 1))),
    ],
)
def test_one_graph_for_all_sizes(function: Program, make: Callable[..., Any]) -> None:
    compiled = Counting(function, dynamic=True)
    for sizes in PAIRS:
        if function is gather and sizes[0] == 0:
            continue
        torch.manual_seed(0)
        mine = make(*sizes)
        torch.manual_seed(0)
        theirs = make(*sizes)
        torch.testing.assert_close(compiled(*mine), function(*theirs), msg=f"{sizes}")
        torch.testing.assert_close(mine, theirs)
    assert compiled.graphs == 1


def test_sizes_become_symbols_once_they_change() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    compiled = Counting(model)
    counts = []
    for size in [5, 5, 6, 7, 2, 11]:
        x = row(size)
        torch.testing.assert_close(compiled(x), model(x))
        counts.append(compiled.graphs)
    assert counts == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("sizes", [[1, 4, 5, 1], [4, 1, 5]])
@pytest.mark.parametrize("squeeze", [torch.squeeze, torch.squeeze_copy])
def test_a_size_that_is_squeezed_is_guarded(
    squeeze: Callable[[Tensor, int], Tensor], sizes: list[int]
) -> None:
    def program(x: Tensor) -> tuple[Tensor, int]:
        squeezed = squeeze(x.sin(), 1)
        return squeezed * 2, squeezed.dim()

    compiled = Counting(program, dynamic=True)
    for size in sizes:
        x = torch.randn(3, size)
        ours, eager = compiled(x), program(x)
        assert ours[1] == eager[1]
        torch.testing.assert_close(ours[0], eager[0])
    # For 1, which is tried as any size first, and for all others.
    assert compiled.graphs == 3


@pytest.mark.parametrize("order", [1, 2])
def test_what_a_formula_slices_by_sizes_has_a_size(order: int) -> None:
    """The derivative of `irfft` slices by a difference of sizes."""

    def program(x: Tensor) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x) ** 2, n=x.shape[1])

    compiled = Counting(program, dynamic=True)
    for size in (6, 7, 10):
        found = []
        for function in (compiled, program):
            torch.manual_seed(0)
            x = torch.randn(3, size, dtype=torch.float64, requires_grad=True)
            found.append(function(x))
            for _ in range(order):
                found[-1] = torch.autograd.grad(found[-1].pow(3).sum(), x, create_graph=True)[0]
        torch.testing.assert_close(*found)
    assert compiled.graphs == 1


@pytest.mark.parametrize("sizes", [[1, 2, 1], [2, 1, 2]])
@pytest.mark.parametrize("write", ["add_", "copy_", "mul_", "div_", "clamp_min_", "pow_"])
def test_a_size_that_broadcasts_in_a_write_is_guarded(write: str, sizes: list[int]) -> None:
    def program(x: Tensor) -> Tensor:
        made = torch.ones(2, 3)
        getattr(made, write)(x)
        return made * 2

    compiled = Counting(program, dynamic=True)
    for size in sizes:
        x = row(size).abs().requires_grad_()
        ours, eager = compiled(x), program(x)
        torch.testing.assert_close(ours, eager)
        weights = torch.randn(2, 3)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, weights) for y in (ours, eager)))
    assert compiled.graphs


OF_NONE: dict[str, Program] = {
    "first": lambda x: x[0] * 2,
    "last": lambda x: x[-1] * 2,
    "third": lambda x: x[2] * 2,
    "first of all": lambda x: x.view(-1)[0] * 2,
    "max": lambda x: x.max() * 2,
    "amin": lambda x: x.amin(0) * 2,
}


@pytest.mark.parametrize("name", OF_NONE)
def test_an_element_of_none_is_an_error(name: str) -> None:
    """And no memory is read that is not there."""
    function = OF_NONE[name]
    compiled = Counting(function, dynamic=True)
    for size in (7, 3, 0, 4):
        x = row(size)
        if size:
            torch.testing.assert_close(compiled(x), function(x))
            continue
        with pytest.raises((IndexError, RuntimeError)):
            function(x)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x)
    assert compiled.graphs


def test_sizes_that_are_not_to_be_symbols() -> None:
    compiled = Counting(lambda x: x * 2, dynamic=False)
    for size in (2, 3, 4):
        compiled(row(size))
    assert compiled.graphs == 3


def test_a_branch_of_the_user_on_a_size_is_a_guard() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x * 3

    compiled = Counting(program, dynamic=True)
    for size in (6, 9, 3, 2, 12, 1):
        x = row(size)
        assert torch.equal(compiled(x), program(x))
    assert compiled.graphs == 2


def test_sizes_are_symbols_in_graph_and_results() -> None:
    captured = adjoint.capture(project, row(4), row(5), dynamic=True)
    assert " s" in captured.show() or "[s" in captured.show()
    for sizes in PAIRS:
        args = [row(size) for size in sizes]
        mine, theirs = adjoint.run(captured, *args), project(*args)
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[1] == theirs[1]
        assert type(mine[1]) is int


def test_a_number_is_an_input_with_a_name() -> None:
    found: list[Any] = []

    def keep(*given: Any, **options: Any) -> Any:
        program = compile_graph(*given, **options)
        found.append(program.first)
        return program

    torch._dynamo.reset()
    compiled = adjoint.compile(lambda x, n: x * n, dynamic=True)
    with mock.patch.object(backend, "compile_graph", keep):
        assert torch.equal(compiled(torch.ones(3), 5), torch.full((3,), 5.0))
    names = [each.name for each in found[0].inputs if isinstance(each, SymbolicSize)]
    assert "L['n']" in names


@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (5, 5)])
def test_products_of_stacks_with_symbolic_sizes(shape: tuple[int, int]) -> None:
    def program(x: Tensor) -> Any:
        return x @ x.mT, nn.functional.dropout(x, 0.5, training=False)

    captured = adjoint.capture(program, torch.randn(2, 4, 3), dynamic=True)
    x = torch.randn(2, *shape)
    product, same = adjoint.run(captured, x)
    assert torch.allclose(product, x @ x.mT)
    assert product._base is None
    assert same is x


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_sizes_that_are_scaled_by_a_fraction(mode: str) -> None:
    def program(x: Tensor) -> Tensor:
        return nn.functional.interpolate(x * 2, scale_factor=1.7, mode=mode)

    captured = adjoint.capture(program, torch.randn(2, 3, 4).double(), dynamic=True)
    for length in (3, 4, 9, 20):
        x = torch.randn(2, 3, length).double()
        assert torch.allclose(adjoint.run(captured, x), program(x))
