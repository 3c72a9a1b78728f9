from __future__ import annotations

import dataclasses
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch

import adjoint
from adjoint import compiler, kernels, targets
from adjoint.compiler import Compiler
from adjoint.errors import FallbackWarning
from adjoint.loops.plan import Launch, Plan
from adjoint.lower.planning import lower
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.torch_private import symbols
from tests.lowering import calls, check, graph_of, native_program, program_of

X = torch.arange(6.0).reshape(2, 3)
PLACES = torch.arange(6)


def test_kernels_of_the_same_text_are_compiled_once() -> None:
    held = check(lambda x: (x * 7.5).exp(), X)
    with mock.patch.object(kernels, "load", side_effect=AssertionError("compiled again")):
        check(lambda y: (y * 7.5).exp(), X)
    assert held.functions


def test_kernels_live_as_long_as_a_program_that_calls_them() -> None:
    def count() -> int:
        gc.collect()
        return len(kernels._KERNELS)

    before = count()
    one, other = (program_of(lambda x: [(x * 6.5).exp()], [X]) for _ in range(2))
    assert count() == before + 1
    owner = weakref.ref(next(iter(one.functions.values())).owner)
    del one
    torch.testing.assert_close(list(other([X])), [(X * 6.5).exp()])
    assert count() == before + 1
    del other
    assert count() == before
    assert owner() is None


def test_numbers_are_part_of_the_text() -> None:
    def times(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * number

    for number in (1.0, 1.0 + 1e-6, 0.0, -0.0):
        check(times(number), X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(1).values,
        lambda x: x.to(torch.complex64) * 2j,
        lambda x: x,
    ],
)
def test_nothing_to_fuse(function: object) -> None:
    assert native_program(graph_of(function, [X])) is None  # type: ignore[arg-type]


def refused(text: str, names: object) -> list[NativeFunction]:
    raise LLVMError("no such instruction")


def test_a_refusal_of_llvm_names_the_lines_and_runs_op_by_op() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 8.25).tanh()

    compiled = adjoint.compile(function)
    with (
        mock.patch.object(kernels, "load", refused),
        pytest.warns(FallbackWarning, match="no such instruction") as caught,
    ):
        result = compiled(X)
    torch.testing.assert_close(result, function(X))
    text = str(caught[0].message)
    assert "test_kernels.py" in text
    assert "(x * 8.25).tanh()" in text
    assert "kernel" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X), function(X))


def picky(text: str, names: Sequence[str]) -> list[NativeFunction]:
    if "tanh" in text:
        raise LLVMError("no hyperbolic functions today")
    return load(text, names)


@pytest.mark.parametrize("tiles", [True, False])
def test_only_the_kernel_that_llvm_refuses_is_run_op_by_op(tiles: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = (x * 3.5).exp() @ w
        z = (y * 4.5).tanh() + 1
        return [z @ w, ((z @ w) * 5.5).sin()]

    x, w = torch.rand(50, 40), torch.rand(40, 40)
    with (
        mock.patch.object(kernels, "load", picky),
        mock.patch.object(targets, "has_blas", return_value=tiles),
        pytest.warns(FallbackWarning) as caught,
    ):
        program = native_program(adjoint.capture(function, x, w).graph_module)
    assert program is not None
    torch.testing.assert_close(list(program([x, w])), function(x, w))
    called = [getattr(call.target, "__name__", "") for call in calls(program.plan)]
    assert "tanh.default" in called
    assert "exp.default" not in called
    assert "sin.default" not in called
    (text,) = {str(warning.message) for warning in caught}
    assert text.startswith("mul")
    assert "tanh" in text
    assert "run op by op, because LLVM refused their kernel: no hyperbolic functions today" in text
    assert "z = (y * 4.5).tanh() + 1" in text
    assert "exp()" not in text


def test_a_kernel_of_no_node_that_could_be_called_may_be_refused() -> None:
    def anonymous(graph_module: torch.fx.GraphModule, *options: Any) -> Plan:
        plan = lower(graph_module, *options)
        (step,) = plan.steps
        assert isinstance(step, Launch)
        return dataclasses.replace(plan, steps=(dataclasses.replace(step, nodes=()),))

    with (
        mock.patch.object(kernels, "load", refused),
        mock.patch.object(compiler, "lower", anonymous),
        pytest.warns(FallbackWarning, match="no such instruction"),
    ):
        assert native_program(graph_of(lambda x: (x * 8.75).tanh(), [X])) is None


def test_types_of_constants_tell_kernels_apart() -> None:
    """Else the second would find the first one's code, in which 65536 is 0."""

    def many(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: (torch.full((6,), 16384, dtype=dtype) * 4).to(torch.int64) + x

    check(many(torch.int16), PLACES)
    check(many(torch.int32), PLACES)


def test_a_refusal_leaves_the_next_compilation_right() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 9.125).tanh()

    with mock.patch.object(kernels, "load", refused), pytest.warns(FallbackWarning):
        assert native_program(graph_of(function, [X])) is None
    check(function, X)
    killed = mock.patch.object(kernels, "load", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        native_program(graph_of(lambda x: (x * 9.25).tanh(), [X]))
    check(lambda x: (x * 9.25).tanh(), X)


def _unequal(count: int, factor: float = 0.375) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """As many kernels, none equal to another: there is a sort after each."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        values = [x]
        for number in range(count):
            values.append((values[-1] * (number + factor)).tanh().sort(1).values)
        return values[1:]

    return function


@pytest.mark.parametrize(("cores", "modules"), [(1, 1), (2, 2), (16, 3)])
def test_many_kernels_are_compiled_in_several_modules_at_a_time(cores: int, modules: int) -> None:
    sizes: list[int] = []

    def counted(text: str, names: Sequence[str]) -> list[NativeFunction]:
        sizes.append(len(names))
        return load(text, names)

    count = 3 * kernels.MIN_KERNELS_OF_MODULE
    with (
        mock.patch.object(kernels, "load", counted),
        mock.patch.object(kernels, "_cores", return_value=cores),
    ):
        function = _unequal(count, cores / 64)
        program = native_program(graph_of(function, [X]))
    assert program is not None
    assert sizes == [count // modules] * modules
    torch.testing.assert_close(list(program([X])), function(X))


def test_of_several_modules_only_the_kernels_that_fail_are_run_op_by_op() -> None:
    def one_refused(text: str, names: Sequence[str]) -> list[NativeFunction]:
        if any(name.endswith("_5") for name in names):
            raise LLVMError("not this one")
        return load(text, names)

    function = _unequal(kernels.MIN_KERNELS_OF_MODULE + 2)
    with (
        mock.patch.object(kernels, "load", one_refused),
        mock.patch.object(kernels, "_cores", return_value=2),
        pytest.warns(FallbackWarning, match="not this one") as caught,
    ):
        program = native_program(graph_of(lambda x: function(x * 1.0625), [X]))
    assert len(caught) == 1
    assert program is not None
    torch.testing.assert_close(list(program([X])), function(X * 1.0625))


def test_an_interrupt_while_several_modules_are_compiled_ends_the_compilation() -> None:
    function = _unequal(kernels.MIN_KERNELS_OF_MODULE + 3)
    killed = mock.patch.object(kernels, "load", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        native_program(graph_of(lambda x: function(x * 1.125), [X]))
    check(lambda x: function(x * 1.125), X)


@pytest.mark.parametrize("target", ["native", "reference"])
def test_the_target_decides(target: str) -> None:
    native = Compiler.native
    with mock.patch.object(Compiler, "native", autospec=True, side_effect=native) as made:
        compiled = adjoint.compile(lambda x: x.exp() * 2, target=target)
        torch.testing.assert_close(compiled(X), X.exp() * 2)
    assert made.called == (target == "native")


def test_one_program_for_many_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = (x @ w).tanh()
        flat = y.reshape(-1)
        return [
            y.sum(0),
            y.softmax(1),
            y.sum(),
            flat[1:] * 2,
            torch.cat([y, x], 1).mean(1),
            y.transpose(0, 1) + 1,
            x.unsqueeze(1) * x.unsqueeze(0),
        ]

    captured = adjoint.capture(function, torch.rand(6, 3), torch.rand(3, 5), dynamic=True)
    program = native_program(captured.graph_module)
    assert program is not None
    for n, k, m in [(6, 3, 5), (7, 4, 9), (2, 3, 300), (5, 2, 2), (6, 3, 5)]:
        x, w = torch.rand(n, k), torch.rand(k, m)
        for ours, eager in zip(program([x, w]), function(x, w), strict=True):
            assert ours.stride() == eager.stride()
            torch.testing.assert_close(ours, eager)


def curious(graph_module: torch.fx.GraphModule, *options: Any) -> Plan:
    """Looks at the first size of the first input, as a rule of lowering might."""
    (first, *_) = graph_module.graph.find_nodes(op="placeholder")
    assert first.meta["val"].shape[0] > 4
    return lower(graph_module, *options)


def test_a_plan_assumes_what_was_assumed_for_another_of_the_same_symbols() -> None:
    captured = adjoint.capture(lambda x: x.sin() * 2, torch.rand(6), dynamic=True).graph_module
    with mock.patch.object(compiler, "lower", curious):
        plans = [native_program(captured) for _ in range(2)]
    assert all(program is not None and len(program.plan.assumed) == 1 for program in plans)


def test_a_plan_that_assumes_what_no_input_shows_is_not_made() -> None:
    captured = adjoint.capture(lambda x: x.sin() * 2, torch.rand(6), dynamic=True).graph_module
    unseen = mock.patch.object(symbols, "symbol_positions", return_value=[])
    with mock.patch.object(compiler, "lower", curious), unseen:
        assert native_program(captured) is None
