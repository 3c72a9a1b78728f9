from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from adjoint.backend import adjoint
from adjoint.graph.operations import apply_function, with_backward
from adjoint.graph.verify import verify
from adjoint.observing import Sighting
from adjoint.optimize.custom_functions import inline_custom_functions
from tests.rewriting import assert_same, graph_of, targets

aten = torch.ops.aten
VECTOR = torch.tensor([0.5, -1.0, 2.0])


class Step(torch.autograd.Function):
    """exp(-1 / x), and 0 for x <= 0; both results are needed for the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.where(x > 0, (-1 / x).exp(), torch.zeros_like(x))
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable(mask := x > 0)
        return y, mask

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        x, y = ctx.saved_tensors
        return torch.where(x > 0, cotangents[0] * y / (x * x), torch.zeros_like(x))


class Twice(torch.autograd.Function):
    """A function inside a function, and a result that is an operand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return Step.apply(x)[0] * torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype), x  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        return cotangents[0] * x + cotangents[1]


def apply(function: Any, x: Tensor) -> Any:
    return function.apply(x)


@pytest.mark.parametrize("function", [Step, Twice])
def test_forward_halves_are_inlined(function: Any) -> None:
    given = VECTOR.clone().requires_grad_()
    module = graph_of(lambda x: apply(function, x), given)
    assert apply_function in targets(module)
    made = inline_custom_functions(module)
    verify(made)
    assert not {apply_function, with_backward} & {*targets(made)}
    assert_same(module, made, VECTOR)
    assert apply_function in targets(module), "the graph itself is differentiated later"


def test_a_graph_without_any_is_left_as_it_is() -> None:
    module = graph_of(lambda x: x.sin(), VECTOR)
    assert inline_custom_functions(module) is module


@pytest.mark.parametrize("function", [Step, Twice])
def test_programs_and_their_derivatives(function: Any) -> None:
    def program(x: Tensor) -> Any:
        first, second = apply(function, x.sin() + 1)
        return first, second, first * 2

    ran: list[Any] = []

    def observer(seen: Sighting) -> None:
        if seen.stage == "inline-custom-functions":
            assert isinstance(seen.value, fx.GraphModule)
            ran.extend(targets(seen.value))

    def backend(graph_module: Any, examples: Any) -> Any:
        return adjoint(graph_module, examples, observer=observer)

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(3, dtype=torch.float64)
    with torch.no_grad():
        for mine, theirs in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(mine, theirs)
    found = []
    for each in (program, compiled):
        leaf = x.clone().requires_grad_()
        first, _, last = each(leaf)
        (slope,) = torch.autograd.grad((first * last).sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), leaf)
        found.append((first, last, slope, bend))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert aten.exp.default in ran
    assert not {apply_function, with_backward} & {*ran}


def test_a_result_that_is_an_operand_is_no_alias_of_it() -> None:
    compiled = torch.compile(lambda x: apply(Twice, x)[1], backend="adjoint", fullgraph=True)
    given = VECTOR.clone()
    eager = Twice.apply(given)[1]  # type: ignore[no-untyped-call]
    assert eager.data_ptr() == given.data_ptr()
    with torch.no_grad():
        torch.testing.assert_close(compiled(given), VECTOR)
