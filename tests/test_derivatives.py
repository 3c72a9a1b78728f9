from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.errors import DifferentiationError
from adjoint.graph.descriptors import Argument
from adjoint.graph.evaluation import evaluate
from adjoint.options import Options
from adjoint.runtime.sized_programs import SizedPrograms
from adjoint.target import Target, cpu_target
from tests.differentiation import check
from tests.lowering import GRID, launches, lower
from tests.parity import leaf, plain

aten = torch.ops.aten


def captured(function: Any, *args: Any) -> torch.fx.GraphModule:
    return adjoint.capture(function, *args).graph_module


def test_what_depends_on_nothing_is_not_recorded() -> None:
    module = captured(lambda x, n: (x.detach() * 2, n + 1), leaf(3), torch.arange(3))
    assert Compiler(Options()).derivative(module, (0,)) is None


def test_the_first_backward_comes_with_the_recording() -> None:
    compiler = Compiler(Options())
    made = compiler.derivative(captured(torch.sin, leaf(3)), (0,))
    assert made is not None
    assert compiler.backward(made, [0], (0,)) is made.first


def test_zeros_are_said_where_results_depend_on_an_input() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.floor() * 2, y.sin()

    compiler = Compiler(Options())
    made = compiler.derivative(captured(function, leaf(3), leaf(3)), (0, 1))
    assert made is not None
    assert made.first_backward.zeros == {Argument(0, "args[0]")}
    assert compiler.backward(made, [1], (0, 1)).zeros == frozenset()


def test_the_transpose_of_a_backward_pushes_forward() -> None:
    x, tangent = plain(3), plain(3)
    compiler = Compiler(Options())
    made = compiler.derivative(captured(lambda x: x.sin() * x, x), (0,))
    assert made is not None
    outputs = evaluate(made.graph_module, [x])
    kept = [*(x for _ in made.saved_inputs), *(outputs[i] for i in made.saved_outputs)]
    saved = [kept[i] for i in made.saved_for(made.first_backward)]
    graph, present = compiler.transposed(made.first_backward.graph_module, len(saved))
    assert present == [0]
    entering = [*saved, torch.zeros_like(outputs[0]), tangent]
    (pushed,) = evaluate(graph, entering)
    expected = (x.cos() * x + x.sin()) * tangent
    torch.testing.assert_close(pushed, expected)


def test_a_loaded_graph_takes_its_inputs_out_of_the_list() -> None:
    inputs = [plain(3)]
    Compiler(Options()).program(captured(torch.sin, inputs[0]))(inputs)
    assert inputs == []


def test_saved_values_that_the_first_backward_does_not_reach() -> None:
    # The mask is saved and has no derivative; what scales it has one only at the second order.
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x > 0, x * y.exp(), x.sin()).prod()

    check(function, [leaf(4), leaf(4)], 3)


def test_what_asks_for_no_target_gets_that_of_this_run(request: pytest.FixtureRequest) -> None:
    run = Compiler(Options()).program(captured(torch.sin, plain(3)))
    assert isinstance(run, SizedPrograms) == (request.config.getoption("--target") != "reference")


def normalized_stack(x: Tensor, *weights: Tensor) -> Tensor:
    for matrix, scale, shift in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
        x = x + torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift) @ matrix
    return x


@pytest.mark.parametrize(("target", "each"), [(cpu_target(), 1), (GRID, 3)])
def test_the_backward_of_a_normalization_is_one_pass(target: Target, each: int) -> None:
    """With what is around it; many threads put two sums over rows together in kernels of their own.

    Nothing of a block is computed before the cotangent has come to it.
    """
    weights = [leaf(*size) for _ in range(4) for size in ((32, 32), (32,), (32,))]
    wrt = range(1 + len(weights))
    made = Compiler(Options()).derivative(captured(normalized_stack, leaf(64, 32), *weights), wrt)
    assert made is not None
    plan = lower(made.first_backward.graph_module, target)
    assert len(launches(plan)) == 4 * each


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_to_the_second_order(reduction: str) -> None:
    target = torch.tensor([3, 0, -100, 2, 2])

    def function(x: Tensor, matrix: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x @ matrix, target, reduction=reduction)

    check(function, [leaf(5, 3), leaf(3, 4)], 2)


def test_cross_entropy_of_half_types_has_the_gradients_of_eager() -> None:
    target = torch.tensor([3, 0, -100, 2, 2])

    def function(x: Tensor, matrix: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.cross_entropy(x @ matrix, target)

    x, matrix = leaf(5, 3).detach().float(), leaf(3, 4).detach().float()
    found = []
    for each in (adjoint.compile(function), function):
        inputs = [x.clone().requires_grad_(), matrix.clone().requires_grad_()]
        found.append(torch.autograd.grad(each(*inputs), inputs))
    # One unit in the last place of bfloat16.
    torch.testing.assert_close(*found, rtol=8e-3, atol=1e-6)


def test_values_written_where_a_mask_says_through_dynamo() -> None:
    torch._dynamo.reset()

    def function(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x * 2
        y[mask] = values.sin()
        return y * y

    x, compiled = leaf(4, 3), torch.compile(function, backend="adjoint", fullgraph=True)
    for rows, values in ((2, leaf(2, 3)), (3, leaf(3, 3)), (3, leaf(3)), (0, leaf(1, 3))):
        mask = torch.arange(4) < rows
        found, wanted = (each(x, mask, values).sum() for each in (compiled, function))
        torch.testing.assert_close(found, wanted)
        for _ in range(2):
            mine, theirs = (
                torch.autograd.grad(each, [x, values], create_graph=True)
                for each in (found, wanted)
            )
            torch.testing.assert_close(mine, theirs)
            found, wanted = (torch.stack([g.sum() for g in each]).sum() for each in (mine, theirs))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x * torch.heaviside(x, torch.tensor(0.0)).detach()).sum(), x * 2),
        lambda x: (x.sin().sum(), x // 0.5),
    ],
)
def test_a_missing_derivative_is_an_error_only_when_it_is_needed(function: Any) -> None:
    x = torch.linspace(-1, 1, 5).requires_grad_()
    expected = function(x)
    compiled = torch.compile(function, backend="adjoint")(x)  # type: ignore[no-untyped-call]
    assert [each.requires_grad for each in compiled] == [each.requires_grad for each in expected]
    torch.testing.assert_close(
        torch.autograd.grad(compiled[0], x, retain_graph=True),
        torch.autograd.grad(expected[0], x, retain_graph=True),
    )


def test_a_missing_derivative_that_is_needed() -> None:
    x = torch.linspace(-1, 1, 5).requires_grad_()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x // 0.5

    _, steps = torch.compile(function, backend="adjoint")(x)
    with pytest.raises(DifferentiationError, match="floor_divide"):
        steps.sum().backward()
