"""Code of the user's that the compiler runs and that raises: the user gets that exception."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, fx

import adjoint
from adjoint.backend import compile_graph
from adjoint.errors import CaptureError, DifferentiationError, FallbackWarning, RewriteError
from adjoint.observing import Sighting
from adjoint.options import Options
from adjoint.passes import graph_pass
from adjoint.rules.registry import VJPS, vjp_rule
from adjoint.runtime.bridge import DifferentiableGraph


class OwnError(Exception):
    """An exception of the user's."""


ERRORS = [OwnError("own"), KeyError("own"), RuntimeError("own"), AssertionError("own")]


def twice(name: str, backward: Callable[..., Any] | None) -> Any:
    """A custom op with this backward, or without one."""

    @torch.library.custom_op(f"adjoint_user_errors::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x * 2

    op.register_fake(torch.empty_like)
    if backward is not None:
        op.register_autograd(backward)
    return op


# What the backward of `raising` raises.
_RAISED: list[Exception] = []


def own_backward(ctx: Any, cotangent: Tensor) -> Tensor:
    raise _RAISED[-1]


def backward_in_numpy(ctx: Any, cotangent: Tensor) -> Tensor:
    return torch.from_numpy(cotangent.numpy() * 2)


raising = twice("raising", own_backward)
untraceable = twice("untraceable", backward_in_numpy)
underivable = twice("underivable", None)


def leaf() -> Tensor:
    return torch.linspace(1, 2, 3, dtype=torch.float64).requires_grad_()


def compiled(function: Callable[..., Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="adjoint", fullgraph=True)


def assert_passed(error: BaseException, expected: Exception, function: str) -> None:
    """The exception itself arrives, and its traceback shows the function that raised it."""
    assert type(error) is type(expected)
    assert error.args == expected.args
    assert function in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_the_backward_of_a_custom_op_raises_where_eager_would(error: Exception) -> None:
    _RAISED.append(error)
    x = leaf()
    with pytest.warns(FallbackWarning, match=f"its derivative raised {type(error).__name__}: "):
        result = compiled(lambda x: raising(x.sin()).sum())(x)
    torch.testing.assert_close(result, (2 * x.sin()).sum())
    with pytest.raises(type(error)) as raised:
        result.backward()
    assert_passed(raised.value, error, "own_backward")
    with pytest.raises(type(error)) as raised:
        adjoint.grad(lambda x: raising(x).sum())(x.detach())
    assert_passed(raised.value, error, "own_backward")


def test_results_beside_one_whose_derivative_raises() -> None:
    _RAISED.append(OwnError("own"))
    x = leaf()
    program = compiled(lambda x: (raising(x).sum(), x.sin().sum()))
    (gradient,) = torch.autograd.grad(program(x)[1], x)
    torch.testing.assert_close(gradient, x.detach().cos())
    with pytest.raises(OwnError) as raised:
        program(x)[0].backward()
    assert_passed(raised.value, _RAISED[-1], "own_backward")


def test_a_backward_that_cannot_be_traced_runs_in_eager() -> None:
    x = leaf()
    with pytest.warns(FallbackWarning, match="numpy"):
        compiled(lambda x: untraceable(x.sin()).sum())(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_a_missing_derivative_is_an_error_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    def counted(*args: Any) -> Any:
        made.append(compile_graph(*args))
        return made[-1]

    monkeypatch.setattr("adjoint.backend.compile_graph", counted)
    x = leaf()
    program = compiled(lambda x: underivable(x.sin()).sum())
    result = program(x)
    torch.testing.assert_close(result, (2 * x.sin()).sum())
    (graph,) = made[0].runnables()
    assert isinstance(graph, DifferentiableGraph)
    assert not graph._eager
    for _ in range(2):
        with pytest.raises(
            DifferentiationError, match=r"underivable.*no autograd formula"
        ) as error:
            program(x).backward()
        assert error.value.source is not None
        assert error.value.source.file == __file__
    assert x.grad is None


def rule_of_ones_own(cotangent: Tensor, out: Tensor, x: Tensor) -> Any:
    raise _RAISED[-1]


def test_a_rule_of_ones_own_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    _RAISED.append(KeyError("own"))
    op = torch.ops.adjoint_user_errors.underivable.default
    vjp_rule(op)(rule_of_ones_own)
    try:
        with pytest.raises(KeyError) as raised:
            compiled(lambda x: underivable(x).sum())(leaf())
    finally:
        del VJPS[op]
    assert_passed(raised.value, _RAISED[-1], "rule_of_ones_own")


def symbolic(function: Callable[..., Any]) -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (function(x),))


@pytest.mark.parametrize("place", ["joint", "post", "lowering"])
def test_a_pass_of_ones_own_raises(place: Any) -> None:
    @graph_pass("own", place)
    def own_pass(graph_module: fx.GraphModule) -> fx.GraphModule:
        raise OwnError("own")

    x = leaf()
    with pytest.raises(RewriteError, match="pass 'own': it raised OwnError: own") as raised:
        compile_graph(symbolic(torch.sin), [x], Options(passes=(own_pass,)))(x)
    assert isinstance(raised.value.__cause__, OwnError)


@pytest.mark.parametrize("stage", ["capture", "differentiate", "partition", "lower", "load"])
def test_an_observer_raises(stage: str) -> None:
    def own_observer(sighting: Sighting) -> None:
        if sighting.stage == stage:
            raise OwnError("own")

    x = leaf()
    with pytest.raises(OwnError) as raised:
        compile_graph(symbolic(torch.sin), [x], Options(), own_observer)(x)
    assert_passed(raised.value, OwnError("own"), "own_observer")


class Returns(torch.autograd.Function):
    """The identity, whose backward returns what it is told to."""

    @staticmethod
    def forward(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.change = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return ctx.change(cotangent)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (lambda g: (g, None, g), CaptureError, r"incorrect number of gradients .expected 2, got 3"),
        (lambda g: g, CaptureError, r"incorrect number of gradients .expected 2, got 1"),
        (lambda g: (g[:1], None), DifferentiationError, r"of shape \[1\] for .* \[3\]"),
    ],
)
def test_gradients_that_autograd_refuses(
    change: Callable[[Tensor], Any], error: type[Exception], why: str
) -> None:
    def function(x: Tensor) -> Any:
        return Returns.apply(x, change).sum()  # type: ignore[no-untyped-call]

    x = leaf().detach()
    with pytest.raises(RuntimeError):
        torch.func.grad(function)(x)
    with pytest.raises(error, match=why):
        adjoint.grad(function)(x)


def test_nones_after_the_gradients_are_ignored() -> None:
    def function(x: Tensor) -> Any:
        return Returns.apply(x, lambda g: (g, None, None)).sum()  # type: ignore[no-untyped-call]

    x = leaf().detach()
    torch.testing.assert_close(adjoint.grad(function)(x), torch.func.grad(function)(x))
