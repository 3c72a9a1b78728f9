from __future__ import annotations

import re
import runpy
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint import MismatchError
from adjoint.checking.checker import Checker
from adjoint.options import Options
from tests.checking.planting import wrong_fusion, wrong_kernel, wrong_rule

aten = torch.ops.aten
X = torch.randn(8, 4, dtype=torch.float64)
W = torch.randn(4, 5, dtype=torch.float64)


def model(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x @ w)
    z = nn.functional.silu(y) * 2
    return (z.cos() + y).sum()


def differentiated(order: int, check: str = "first-call", **options: Any) -> None:
    """Call the model, compiled and checked, and differentiate it."""
    torch.compiler.reset()
    options = {"target": "native", "check": check, **options}
    compiled = torch.compile(model, backend="adjoint", options=options)
    inputs = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    total = compiled(*inputs)
    for _ in range(order):
        gradients = torch.autograd.grad(total, inputs, create_graph=True)
        total = torch.stack([each.square().sum() for each in gradients]).sum()


def mismatch(order: int = 1, **options: Any) -> MismatchError:
    with pytest.raises(MismatchError) as raised:
        differentiated(order, **options)
    return raised.value


def test_what_is_right_passes_at_every_order() -> None:
    differentiated(2, "every")


def test_a_wrong_kernel_is_found_with_op_line_values_and_kernel() -> None:
    with wrong_kernel(aten.silu.default):
        error = mismatch(order=0)
    assert error.op == "aten.silu.default"
    assert error.source is not None
    assert "silu(y) * 2" in error.source.text
    text = str(error)
    assert text.startswith("result[0] is ")
    assert "in kernel fused_" in text
    assert "silu" in text
    assert " instead of " in text.splitlines()[1]
    assert "(relative difference " in text


def test_a_wrong_kernel_of_the_derivative_is_found() -> None:
    with wrong_kernel(aten.silu_backward.default):
        error = mismatch()
    assert error.op == "aten.silu_backward.default"
    assert error.source is not None
    assert "silu(y) * 2" in error.source.text
    assert error.what.startswith("the gradient of L['")


def test_a_wrong_fusion_is_found_though_each_op_is_right_alone() -> None:
    with wrong_fusion("cos", "silu", "sin"):
        error = mismatch(order=0)
    # The kernel is wrong as soon as it computes the second of the two.
    assert error.source is not None
    assert error.op in ("aten.cos.default", "aten.silu.default")
    assert error.op.split(".")[1] in error.source.text
    assert "in kernel fused_" in str(error)
    # No op is wrong alone, so the script has all of the kernel.
    assert "silu" in error.reproduction
    assert "cos" in error.reproduction


@pytest.mark.parametrize(("op", "order"), [(aten.cos.default, 1), (aten.sin.default, 2)])
def test_a_wrong_derivative_is_found_at_its_order(op: Any, order: int) -> None:
    with wrong_rule(op, torch.exp):
        error = mismatch(order)
    assert f"the derivative of {op} is wrong" in str(error)
    assert f"of order {order}," in error.what
    assert error.source is not None
    assert "z.cos()" in error.source.text


def test_a_wrong_pass_is_found_with_its_match() -> None:
    @adjoint.replaces(lambda x, y: x.cos() + y, torch.ones(2, 3), torch.ones(2, 3))
    def wrong(x: Tensor, y: Tensor) -> Tensor:
        """Almost the same"""
        return x.cos() * 1.001 + y

    error = mismatch(order=0, passes=[wrong])
    assert "the pass 'wrong' makes it wrong" in str(error)
    assert "match 1" in str(error)
    assert "z.cos() + y" in str(error)


def test_the_script_shows_the_difference(tmp_path: Path) -> None:
    script = tmp_path / "reproduction.py"
    with wrong_kernel(aten.silu.default):
        script.write_text(mismatch(order=0).reproduction)
        assert "tanh" not in script.read_text()  # The op is wrong alone.
        with pytest.raises(AssertionError, match="not close"):
            runpy.run_path(str(script))
    torch.compiler.reset()
    runpy.run_path(str(script))


@pytest.mark.slow
def test_the_script_of_a_derivative_shows_the_difference(tmp_path: Path) -> None:
    script = tmp_path / "reproduction.py"
    with wrong_rule(aten.cos.default, torch.sin):
        script.write_text(mismatch().reproduction)
        torch.compiler.reset()
        with pytest.raises(AssertionError, match="not close"):
            runpy.run_path(str(script))
    torch.compiler.reset()
    runpy.run_path(str(script))


def test_transforms_are_compared_with_torch_func() -> None:
    def wave(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    checked = {"check": "every", "target": "native"}
    adjoint.grad(wave, options=checked)(X)
    with wrong_kernel(aten.cos.default), pytest.raises(MismatchError, match=r"aten\.cos"):
        adjoint.grad(lambda x: (x.sin() * x).sum(), options=checked)(X)


def test_writes_and_random_numbers_are_compared() -> None:
    def written(x: Tensor) -> Tensor:
        x.mul_(2)
        return nn.functional.dropout(x, 0.5) + torch.rand(3)

    compiled = torch.compile(written, backend="adjoint", options={"check": "every"})
    for _ in range(3):
        compiled(torch.rand(3))
    torch.compiler.reset()
    options: dict[str, Any] = {"check": "every", "target": "native"}
    compiled = torch.compile(written, backend="adjoint", options=options)
    with wrong_kernel(aten.mul.Tensor), pytest.raises(MismatchError) as raised:
        compiled(torch.rand(3))
    assert re.match(r"(result\[0\]|input 0, after the call,) is ", str(raised.value))


# How often each of the ops below has run on real tensors.
RUNS: Counter[str] = Counter()


def counted(name: str, function: Callable[[Tensor], Tensor]) -> Any:
    @torch.library.custom_op(f"adjoint_checker::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        RUNS[name] += 1
        return function(x)

    op.register_fake(torch.empty_like)
    return op


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


counted_sin, counted_cos = counted("sin", torch.sin), counted("cos", torch.cos)
counted_slope = counted("slope", lambda x: -x.sin())
counted_sin.register_autograd(
    lambda ctx, cotangent: cotangent * counted_cos(*ctx.saved_tensors), setup_context=keep
)
counted_cos.register_autograd(
    lambda ctx, cotangent: cotangent * counted_slope(*ctx.saved_tensors), setup_context=keep
)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_first_call_costs_at_most_three_eager_calls_once(order: int) -> None:
    torch.compiler.reset()
    options: dict[str, Any] = {"check": "first-call"}

    def function(x: Tensor) -> Tensor:
        total: Tensor = (counted_sin(x) * x).sum()
        return total

    def runs_of(function: Callable[[Tensor], Tensor]) -> dict[str, int]:
        RUNS.clear()
        x = X.clone().requires_grad_()
        total = function(x)
        for _ in range(order):
            (gradient,) = torch.autograd.grad(total, x, create_graph=True)
            total = gradient.square().sum()
        return dict(RUNS)

    compiled: Any = torch.compile(function, backend="adjoint", options=options)
    eager, first, later = runs_of(function), runs_of(compiled), runs_of(compiled)
    assert len(eager) == order + 1
    assert later == eager
    for name, count in eager.items():
        assert count < first[name] <= 4 * count


@pytest.mark.slow
def test_a_derivative_that_eager_lacks_is_not_compared() -> None:
    compiled = torch.compile(
        lambda x: nn.functional.layer_norm(x, (4,)).square().sum(),
        backend="adjoint",
        options={"check": "every"},
    )
    x = X.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        gradient.square().sum().backward()
    assert x.grad is not None


def test_a_difference_that_nothing_explains_says_so() -> None:
    graph_module = adjoint.capture(lambda x: x.sin(), X).graph_module
    checker = Checker(Options(check="every"))
    with pytest.raises(MismatchError, match="neither an op, nor a pass, nor a kernel alone"):
        checker.of_transform(graph_module, lambda: [X], X.sin() + 1, X.sin())
