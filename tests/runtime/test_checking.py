"""Ops that do not return what their fakes say."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.compiler import Compiler
from adjoint.errors import FallbackWarning
from adjoint.options import Options
from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.torch_private import learned_fakes
from tests.lowering import native_program
from tests.versions import TORCH

LIBRARY = torch.library.Library("checking", "FRAGMENT")


def lying(name: str, real: Callable[[Tensor], Any], fake: Callable[[Tensor], Any]) -> Any:
    """An op that says something else of its result than what it returns."""
    several = "(Tensor, Tensor)" if name == "pair" else "Tensor"
    LIBRARY.define(f"{name}(Tensor x) -> {several}")
    LIBRARY.impl(name, real, "CPU")
    LIBRARY.impl(name, fake, "Meta")
    op = getattr(torch.ops.checking, name).default
    if name != "pair":
        torch.library.register_autograd(
            op, lambda ctx, cotangent: cotangent.to(ctx.dtype) * 3, setup_context=_keep, lib=LIBRARY
        )
    return op


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dtype = inputs[0].dtype


DTYPE = lying("dtype", lambda x: x.float() * 3, torch.empty_like)
LAYOUT = lying("layout", lambda x: (x * 3).t().contiguous().t(), torch.empty_like)
GAPS = lying("gaps", lambda x: x.new_empty(4, 12)[:, ::2].copy_(x * 3), torch.empty_like)
SHAPE = lying("shape", lambda x: x[:2] * 3, torch.empty_like)
ARGUMENT = lying("argument", lambda x: x, torch.empty_like)
PAIR = lying("pair", lambda x: (x * 2, x.double() * 3), lambda x: (x + 0, x + 0))


@pytest.fixture(autouse=True)
def _nothing_learned() -> Iterator[None]:
    learned_fakes.forget()
    yield
    learned_fakes.forget()


# What is checked is what plans expect; the reference target has none.
WITH_PLANS: Any = "native" if Options().target == "reference" else Options().target


def compiled(function: Callable[..., Any], x: Tensor, dynamic: bool = False) -> Any:
    captured = adjoint.capture(function, x, dynamic=dynamic)
    return DifferentiableGraph(captured.graph_module, Compiler(Options(target=WITH_PLANS)))


def both(function: Callable[..., Any], x: Tensor, program: Any) -> tuple[list[Any], list[Any]]:
    """The value and the gradient of the sum of squares, ours and eager's."""
    found = []
    runs: list[Callable[..., Any]] = [lambda x: program([x])[0], function]
    for run in runs:
        leaf = x.detach().requires_grad_()
        out = run(leaf)
        (gradient,) = torch.autograd.grad(out.double().square().sum(), leaf)
        found.append([out.detach(), gradient])
    return found[0], found[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", [DTYPE, LAYOUT], ids=str)
def test_a_program_is_made_anew_from_what_is_true(op: Any, dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        out: Tensor = op(x.sin()).exp() * 2
        return out

    dtype = torch.bfloat16 if op is DTYPE else torch.float64
    program = compiled(function, torch.rand(4, 6).to(dtype), dynamic)
    for rows in (4, 4, 5) if dynamic else (4, 4):
        ours, eagers = both(function, torch.rand(rows, 6).to(dtype), program)
        torch.testing.assert_close(ours, eagers)
    node = next(n for n in program.graph_module.graph.nodes if n.target is op)
    real = op(torch.rand(4, 6).to(dtype))
    assert node.meta["val"].dtype == real.dtype


def test_a_result_with_gaps_is_read_by_the_program_there_is() -> None:
    def function(x: Tensor) -> Tensor:
        out: Tensor = GAPS(x.sin()).exp() * 2
        return out

    program = compiled(function, torch.rand(4, 6))
    for _ in range(2):
        x = torch.rand(4, 6)
        (ours,) = program([x])
        torch.testing.assert_close(ours, function(x))
    assert program._remakes == 0


def test_one_of_several_results() -> None:
    def function(x: Tensor) -> Tensor:
        # Exact in float32: the result is compared in float64.
        one, other = PAIR(x * 2)
        out: Tensor = (one + other).exp()
        return out

    x = torch.rand(4)
    (ours,) = compiled(function, x)([x])
    torch.testing.assert_close(ours, function(x))
    assert ours.dtype is torch.float64


def test_where_sizes_cannot_be_known_it_runs_op_by_op_and_says_so() -> None:
    def function(x: Tensor) -> Tensor:
        out: Tensor = SHAPE(x.sin()).exp() * 2
        return out

    x = torch.rand(4, 3)
    program = compiled(function, x)
    with pytest.warns(FallbackWarning, match=r"checking.shape.default returned a tensor of"):
        (ours,) = program([x])
    torch.testing.assert_close(ours, function(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (ours,) = program([x])
    torch.testing.assert_close(ours, function(x))


def test_memory_of_an_argument_is_not_the_results() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x + 0.5 * x * x
        same = ARGUMENT(v)
        return same, same.prod(-1) + (v * 3).sort().values

    x = torch.rand(4)
    program = compiled(lambda x: function(x), x)
    ours, eagers = program([x]), function(x)
    torch.testing.assert_close(list(ours), list(eagers))
    assert learned_fakes.returns_argument(ARGUMENT)


def test_a_result_that_is_an_argument_is_unexpected() -> None:
    captured = adjoint.capture(lambda x: ARGUMENT(x.sin()).exp(), torch.rand(4))
    program = native_program(captured.graph_module)
    assert program is not None
    with pytest.raises(UnexpectedResult, match="returned memory of an argument") as raised:
        program([torch.rand(4)])
    assert "ARGUMENT(x.sin())" in raised.value.line


def test_an_input_that_is_returned_is_a_tensor_of_its_own() -> None:
    x = torch.rand(4)
    program = compiled(lambda x: (ARGUMENT(x), x * 2), x)
    first, _ = program([x])
    assert first.data_ptr() != x.data_ptr()
    torch.testing.assert_close(first, x)


def test_what_was_drawn_is_drawn_again() -> None:
    def function(x: Tensor) -> Tensor:
        out: Tensor = DTYPE(torch.bernoulli(x * 0.5)).exp() + torch.bernoulli(x * 0.5)
        return out

    x = torch.rand(64).bfloat16()
    program = compiled(function, x)
    torch.manual_seed(3)
    (ours,) = program([x])
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, function(x))
    assert torch.equal(torch.rand(1), after)


def test_only_the_first_run_of_a_binding_is_checked() -> None:
    x = torch.rand(8, 8)
    captured = adjoint.capture(lambda x: x.sin().cumsum(0).exp(), x)
    program = native_program(captured.graph_module)
    assert isinstance(program, CpuProgram)
    program([x])
    (binding,) = program._bindings
    assert binding.is_checked
    assert program._checked_function is not None
    assert "checked_call(" in program._writer(checks=True).text()[0]
    assert "checked_call(" not in program._writer().text()[0]


def test_inputs_are_as_they_were_when_a_result_differs() -> None:
    x = torch.rand(4).bfloat16()
    captured = adjoint.capture(lambda x: DTYPE(x.sin()).exp(), x)
    program = native_program(captured.graph_module)
    assert program is not None
    inputs = [x]
    with pytest.raises(
        UnexpectedResult, match=r"torch.float32, \(4,\).* where torch.bfloat16, \(4,\)"
    ):
        program(inputs)
    assert inputs[0] is x


def test_a_saved_value_of_a_graph_without_kernels_has_another_dtype() -> None:
    """Kernels of the backward graph read it, though none of the forward graph does."""

    @torch.library.custom_op("checking::with_slope", mutates_args=())
    def with_slope(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos().float()

    @with_slope.register_fake
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(x)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])

    def backward(ctx: Any, cotangent: Tensor, _: Any) -> Any:
        return (cotangent * ctx.saved_tensors[0]).to(cotangent.dtype)

    def first(x: Tensor) -> Any:
        return with_slope(x)[0]

    with_slope.register_autograd(backward, setup_context=keep)
    x = torch.linspace(-1, 1, 64).bfloat16().requires_grad_()
    (slope,) = torch.autograd.grad(torch.compile(first, backend="adjoint")(x).sum(), x)
    torch.testing.assert_close(slope, x.detach().cos())


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
def test_quantized_tensors_run_op_by_op() -> None:
    def rounded(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8).dequantize() + x

    x = torch.randn(5)
    compiled = adjoint.compile(rounded, target=WITH_PLANS)
    # Older ones leave such a function to Python before any backend is asked.
    says_so = pytest.warns(FallbackWarning, match="quantize_per_tensor")
    with says_so if TORCH >= (2, 13) else contextlib.nullcontext():
        found = compiled(x)
    torch.testing.assert_close(found, rounded(x))
    torch.testing.assert_close(compiled(x + 1), rounded(x + 1))
