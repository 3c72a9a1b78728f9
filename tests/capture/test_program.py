from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.errors import CaptureError
from tests.parity import leaf, plain, refused

Program = Callable[..., Any]


@torch.library.custom_op("adjoint_test_program::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    """It has no fake implementation."""
    return x * 2


def branches_on_a_value(x: Tensor) -> Any:
    return x * 2 if x.sum() > 0 else x * 3


def loops_on_a_value(x: Tensor) -> Any:
    while x.abs().sum() > 0.1:
        x = x / 2
    return x


def prints_a_value(x: Tensor) -> Any:
    return f"{x.sum().item():.2f}", x * 2


def makes_an_array(x: Tensor) -> Any:
    return x * float(x.detach().numpy().sum())


def uses_an_op_without_a_fake(x: Tensor) -> Any:
    return shapeless(x) + 1


@pytest.mark.parametrize(
    ("program", "construct", "line", "remedy"),
    [
        (branches_on_a_value, "a value that decides", "return x * 2 if x.sum() > 0", "torch.cond"),
        (loops_on_a_value, "a value that decides", "while x.abs().sum() > 0.1:", "torch.cond"),
        (
            uses_an_op_without_a_fake,
            "op adjoint_test_program.shapeless",
            "return shapeless(x) + 1",
            "torch.library.register_fake",
        ),
    ],
)
def test_the_error_names_the_construct_the_line_and_a_way_out(
    program: Program, construct: str, line: str, remedy: str
) -> None:
    error = refused(program, lambda: plain(3))
    assert construct in error.construct
    assert error.source is not None
    assert error.source.file == __file__
    assert error.source.function == program.__name__
    assert error.source.text.startswith(line)
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "program",
    [
        prints_a_value,
        makes_an_array,
        lambda x: x * x.data_ptr(),
        lambda x: x * np.asarray(x.detach()).sum(),
        lambda x: x[int(x.sum()) % 2 :],
    ],
)
def test_what_needs_a_value_is_refused(program: Program) -> None:
    error = refused(program, lambda: plain(3))
    assert error.source is not None
    assert error.source.function == program.__name__


def test_what_leaves_torch_is_refused() -> None:
    error = refused(lambda x: x * x.data_ptr(), lambda: plain(3))
    assert error.construct == "Tensor.data_ptr"
    assert error.why == "the tensor has no data while the program is captured"


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (lambda x: x.view(7), RuntimeError, "shape '\\[7\\]' is invalid"),
        (lambda x: x @ torch.ones(5, 5).double(), RuntimeError, "reduction dim|size"),
        (lambda x: x.no_such_method(), AttributeError, "no_such_method"),
        (lambda x: x[3], IndexError, "out of range|index"),
    ],
)
def test_errors_of_the_user_are_the_users(
    program: Program, error: type[Exception], message: str
) -> None:
    x = plain(3)
    with pytest.raises(error, match=message) as raised:
        adjoint.capture(program, x)
    assert not isinstance(raised.value, CaptureError)


def test_an_error_in_the_middle_leaves_inputs_as_they_were() -> None:
    def program(x: Tensor, buffer: Tensor) -> Any:
        x.mul_(2)
        buffer.t_()
        with torch.no_grad():
            buffer.add_(1)
        return x if buffer.sum() > 0 else buffer

    error = refused(program, lambda: (leaf(3) * 1, plain(2, 3)))
    assert "decides what the program does next" in str(error)


def test_an_error_at_run_time_leaves_inputs_as_they_were() -> None:
    def program(x: Tensor, index: Tensor) -> Any:
        x.mul_(2)
        return x[index]

    x, index = plain(3), torch.tensor([1])
    captured = adjoint.capture(program, x, index)
    before = x.clone()
    with pytest.raises(IndexError) as raised:
        adjoint.run(captured, x, torch.tensor([7]))
    assert torch.equal(x, before)
    assert x._version == 0
    notes = getattr(raised.value, "__notes__", ["return x[index]"])
    assert any("return x[index]" in note for note in notes)


def test_the_state_of_torch_is_restored_after_an_error() -> None:
    apply = torch.autograd.Function.__dict__["apply"]
    asks = torch.compiler.is_dynamo_compiling
    x, random = plain(3), torch.get_rng_state()

    def program(x: Tensor) -> Any:
        torch.rand(3)
        torch.set_grad_enabled(False)
        raise KeyError

    grad = torch.is_grad_enabled()
    try:
        with pytest.raises(KeyError):
            adjoint.capture(program, x)
    finally:
        torch.set_grad_enabled(grad)
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.compiler.is_dynamo_compiling is asks
    assert torch.equal(torch.get_rng_state(), random)
    assert type(torch.ones(2)) is Tensor


def test_autocast_forgets_the_fakes_it_cast() -> None:
    layer, x = nn.Linear(3, 3), torch.randn(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        captured = adjoint.capture(layer, x)
        expected, actual = layer(x), adjoint.run(captured, x)
    assert torch.equal(actual, expected)


def test_numbers_read_from_tensors_are_values_of_the_graph() -> None:
    def program(x: Tensor) -> Any:
        return x * x.sum().item(), x.max().item(), sum(x.tolist())

    x = torch.arange(3.0)
    captured = adjoint.capture(program, x)
    for scale in (1, 2):
        expected, actual = program(x * scale), adjoint.run(captured, x * scale)
        assert torch.equal(actual[0], expected[0])
        assert actual[1:] == expected[1:]


def test_sizes_that_depend_on_values() -> None:
    def program(x: Tensor) -> Any:
        return x[x > 0] * 2, x.nonzero()

    captured = adjoint.capture(program, torch.tensor([1.0, -1.0, 2.0]))
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, -1.0, 2.0])):
        torch.testing.assert_close(adjoint.run(captured, x), program(x))
