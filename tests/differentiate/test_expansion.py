"""Custom autograd functions under our own differentiation: the derivatives are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import adjoint
from adjoint.compiler import Compiler
from adjoint.differentiate.expansion import expand
from adjoint.graph.evaluation import evaluate
from adjoint.graph.operations import apply_function, has_bodies, with_backward
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.options import Options
from adjoint.runtime.bridge import DifferentiableGraph
from tests.control_flow import cond, scan
from tests.differentiation import check
from tests.parity import leaf

aten = torch.ops.aten


def apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


class Made:
    """A custom function of one or two tensors, made of its two halves."""

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        halves = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.function = type("Custom", (Function,), halves)

    def __call__(self, *args: Any) -> Any:
        return apply(self.function, *args)


def save(ctx: Any, result: Any, *tensors: Tensor) -> Any:
    ctx.save_for_backward(*tensors)
    return result


# The derivative of the intermediate is not seen by the second derivative.
INTERMEDIATE = Made(
    lambda ctx, x: save(ctx, x.sin() * x, x.cos(), x),
    lambda ctx, cotangent: cotangent * (ctx.saved_tensors[0] * ctx.saved_tensors[1] + 1),
)


def _square_exp(ctx: Any, x: Tensor) -> Tensor:
    result = (x * x).exp()
    return save(ctx, result, x, result)  # type: ignore[no-any-return]


def _exp_twice(ctx: Any, cotangent: Tensor) -> Tensor:
    x, result = ctx.saved_tensors
    return 3 * cotangent * x * result  # type: ignore[no-any-return]


# The history of the saved result is the function itself, wrong factor and all.
RESULT = Made(_square_exp, _exp_twice)


def _partly_fixed(ctx: Any, cotangent: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    with torch.no_grad():
        slope = x.cos()
    return cotangent * slope + cotangent.sin() * x.detach() * x  # type: ignore[no-any-return]


# Modes inside the backward are the user's.
MODES = Made(lambda ctx, x: save(ctx, x.sin(), x), _partly_fixed)

STRAIGHT_THROUGH = Made(lambda ctx, x: x.round(), lambda ctx, cotangent: cotangent)

NESTED = Made(
    lambda ctx, x: save(ctx, x.exp(), x),
    lambda ctx, cotangent: RESULT(ctx.saved_tensors[0]) * INTERMEDIATE(cotangent),
)

BROADCAST = Made(
    lambda ctx, x, y: save(ctx, x * y + y.sum(), x, y),
    lambda ctx, c: (c * ctx.saved_tensors[1], (c * ctx.saved_tensors[0]).sum(0) + c.sum()),
)


def _recording_forward(ctx: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        kept = x**3
    return save(ctx, x.sin(), kept)  # type: ignore[no-any-return]


# What the forward records has a history, for the second derivative.
RECORDING = Made(_recording_forward, lambda ctx, cotangent: cotangent * ctx.saved_tensors[0])


def _two_results(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ctx.save_for_backward(x, y)
    fixed = x.floor()
    ctx.mark_non_differentiable(fixed)
    return x * y, fixed, x + y * y


def _of_two_results(ctx: Any, product: Tensor, fixed: Tensor, total: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return product * y + total, product * x + 5 * total * y


SEVERAL = Made(_two_results, _of_two_results)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "an intermediate is saved": lambda x, y: INTERMEDIATE(x * y) * y,
    "a result is saved": lambda x, y: RESULT(x.sin() * y),
    "modes in the backward": lambda x, y: MODES(x * y),
    "straight through": lambda x, y: STRAIGHT_THROUGH(3 * x) * y,
    "custom functions in the backward": lambda x, y: NESTED(x * y),
    "one after the other": lambda x, y: RESULT(INTERMEDIATE(x)) + MODES(RESULT(y)),
    "broadcast operands": lambda x, y: BROADCAST(torch.stack([x, y]), y),
    "recorded in the forward": lambda x, y: RECORDING(x * y),
    "several results": lambda x, y: SEVERAL(x, y.sin()),
    "one of several results": lambda x, y: SEVERAL(x, y.sin())[2] * 2,
    "in a loop": lambda x, y: [x := INTERMEDIATE(x) * y for _ in range(3)][-1],
    "only one operand has a gradient": lambda x, y: SEVERAL(x, y.detach())[0].exp(),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_derivatives_are_eagers(program: Callable[..., Any]) -> None:
    check(program, [leaf(3), leaf(3)], 3)


def test_a_custom_function_is_differentiated_by_us() -> None:
    captured = adjoint.capture(lambda x: INTERMEDIATE(x), leaf(3))
    assert isinstance(
        Compiler(Options()).differentiable(captured.graph_module), DifferentiableGraph
    )


FIRST_ONLY = Made(lambda ctx, x, y: x * y, lambda ctx, cotangent: (cotangent, None))

GIVEN: dict[str, Callable[..., Any]] = {
    "an operand has none": lambda x, y: FIRST_ONLY(x.exp(), y * 2),
    "an operand has none, and zero": lambda x, y: FIRST_ONLY(x, y) + y.floor(),
    "a function takes zeros for none": lambda x, y: FIRST_ONLY(x, STRAIGHT_THROUGH(y).sin()),
}


@pytest.mark.parametrize("program", GIVEN.values(), ids=GIVEN.keys())
def test_what_is_given_no_gradient_has_none(program: Callable[..., Any]) -> None:
    inputs = [leaf(3), leaf(3)]
    compiled = Compiler(Options()).differentiable(adjoint.capture(program, *inputs).graph_module)
    assert isinstance(compiled, DifferentiableGraph)
    results = [compiled(inputs)[0], program(*inputs)]
    ours, eager = (torch.autograd.grad(each.sum(), inputs, allow_unused=True) for each in results)
    for one, other in zip(ours, eager, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def _unmaterialized(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    ctx.set_materialize_grads(False)
    return x * 2, x * 3


def _of_what_is_given(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None:
        return None if second is None else second * 7
    return first * 2 if second is None else first * second


def test_a_function_that_is_told_what_is_missing_is_not() -> None:
    function, x = Made(_unmaterialized, _of_what_is_given), leaf(3)
    module = adjoint.capture(lambda x: function(x)[1] * x, x).graph_module
    assert expand(module) is module
    assert not isinstance(Compiler(Options()).differentiable(module), DifferentiableGraph)
    found = adjoint.grad(lambda x: (function(x)[1] * x).sum())(x.detach())
    (expected,) = torch.autograd.grad((function(x)[1] * x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_the_forward_half_is_part_of_the_expanded_graph() -> None:
    x = leaf(3)
    module = adjoint.capture(lambda x: INTERMEDIATE(x) * 2, x).graph_module
    made = expand(module)
    targets = [node.target for node in made.graph.nodes]
    assert apply_function not in targets
    assert {aten.sin.default, aten.cos.default, with_backward} <= set(targets)
    results = [evaluate(each, [x])[0] for each in (module, made)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(each.sum(), x)[0] for each in results]
    torch.testing.assert_close(*gradients)


def test_a_graph_without_custom_functions_is_itself() -> None:
    module = adjoint.capture(torch.sin, leaf(3)).graph_module
    assert expand(module) is module


def test_transforms_use_the_derivative_of_the_function() -> None:
    x = leaf(3).detach()
    twice = adjoint.grad(lambda x: adjoint.grad(lambda x: RESULT(x).sum())(x).sum())
    given = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(RESULT(given).sum(), given, create_graph=True)
    torch.testing.assert_close(twice(x), torch.autograd.grad(first.sum(), given)[0])


def test_a_loop_keeps_what_it_carries_where_a_derivative_flows() -> None:
    def function(x: torch.Tensor) -> Any:
        return scan(lambda c, a: (c * a, a), x[0] * 1, x)

    module = adjoint.capture(function, leaf(4, 3)).graph_module
    assert expand(module, ()) is module
    made = expand(module, (0,))
    (loop,) = filter(has_bodies, made.graph.nodes)
    assert [tuple(each.shape) for each in loop.meta["val"]] == [(3,), (4, 3), (4, 3)]
    assert expand(made, (0,)) is made, "once is enough"
    x = leaf(4, 3)
    torch.testing.assert_close(evaluate(made, [x]), evaluate(module, [x]))


def test_a_branch_keeps_what_it_draws() -> None:
    def draw(a: torch.Tensor) -> torch.Tensor:
        return a * torch.rand(5, dtype=a.dtype).sum()

    def function(x: torch.Tensor) -> Any:
        return cond(x.sum() > 0, draw, torch.sin, (x,))

    module = adjoint.capture(function, leaf(3)).graph_module
    made = expand(module, (0,))
    (branch,) = filter(has_bodies, made.graph.nodes)
    assert [tuple(each.shape) for each in branch.meta["val"]] == [(3,), (5,)]
    true, false = subgraphs_of(made).values()
    x = torch.ones(3, dtype=torch.float64)
    result, drawn = evaluate(true, [x])
    torch.testing.assert_close(result, x * drawn.sum())
    assert not evaluate(false, [x])[1].any()
