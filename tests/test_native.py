from __future__ import annotations

import warnings
from collections.abc import Callable
from unittest import mock

import pytest
import torch

import adjoint
from adjoint import native
from adjoint.errors import FallbackWarning
from adjoint.native import native_program
from adjoint.runtime.cpu.engine import LLVMError
from tests.lowering import check, graph_of

X = torch.arange(6.0).reshape(2, 3)


def test_kernels_of_the_same_text_are_compiled_once() -> None:
    check(lambda x: (x * 7.5).exp(), X)
    with mock.patch.object(native, "load", side_effect=AssertionError("compiled again")):
        check(lambda y: (y * 7.5).exp(), X)


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


def refused(text: str, names: object) -> list[int]:
    raise LLVMError("no such instruction")


def test_a_refusal_of_llvm_names_the_lines_and_runs_op_by_op() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 8.25).tanh()

    compiled = adjoint.compile(function)
    with (
        mock.patch.object(native, "load", refused),
        pytest.warns(FallbackWarning, match="no such instruction") as caught,
    ):
        result = compiled(X)
    torch.testing.assert_close(result, function(X))
    text = str(caught[0].message)
    assert "test_native.py" in text
    assert "(x * 8.25).tanh()" in text
    assert "kernel" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X), function(X))


def test_a_refusal_leaves_the_next_compilation_right() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 9.125).tanh()

    with mock.patch.object(native, "load", refused), pytest.warns(FallbackWarning):
        assert native_program(graph_of(function, [X])) is None
    check(function, X)
    killed = mock.patch.object(native, "load", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        native_program(graph_of(lambda x: (x * 9.25).tanh(), [X]))
    check(lambda x: (x * 9.25).tanh(), X)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_the_target_decides(target: str) -> None:
    with mock.patch("adjoint.programs.native_program", wraps=native_program) as made:
        compiled = adjoint.compile(lambda x: x.exp() * 2, target=target)
        torch.testing.assert_close(compiled(X), X.exp() * 2)
    assert made.called == (target == "cpu")


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
