"""The caller's inputs are changed as eager changes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import adjoint
from adjoint.graph.calling import CallingConvention
from adjoint.runtime.calling import call
from adjoint.runtime.input_changes import whole_memory


def convention(function: object, *inputs: torch.Tensor) -> CallingConvention:
    return adjoint.capture(function, *inputs).calling  # type: ignore[arg-type]


def test_versions_advance_as_often_as_the_program_wrote() -> None:
    def program(x: torch.Tensor) -> None:
        x.add_(1).mul_(2)
        x[0].zero_()

    x = torch.ones(3)
    call(lambda inputs: [inputs[0] * 4], convention(program, x), [x])
    assert x._version == 3


@pytest.mark.parametrize("is_view", [False, True])
def test_a_write_reaches_the_memory_of_the_caller(is_view: bool) -> None:
    memory = torch.zeros(4)
    x = memory[1:3] if is_view else memory
    calling = convention(lambda x: x.add_(1), x)
    (result,) = call(lambda inputs: [inputs[0] + 1], calling, [x])
    assert result is x
    assert memory.tolist() == ([0, 1, 1, 0] if is_view else [1, 1, 1, 1])


def test_metadata_changes_before_data() -> None:
    x = torch.arange(6.0).reshape(2, 3)

    def program(x: torch.Tensor) -> None:
        x.t_().mul_(2)

    found, wanted = x.clone(), x.clone()
    torch.compile(program, backend="adjoint")(found)
    program(wanted)
    assert found.shape == (3, 2)
    assert found.equal(wanted)
    assert found.stride() == wanted.stride()
    assert found._version == wanted._version


def test_a_recorded_write_has_a_history() -> None:
    x, y = torch.zeros(3), torch.ones(3, requires_grad=True)
    torch.compile(lambda x, y: x.copy_(y * 2), backend="adjoint")(x, y)
    x.sum().backward()
    assert y.grad is not None
    assert y.grad.equal(torch.full((3,), 2.0))


def test_the_whole_memory_is_more_than_the_tensor_covers() -> None:
    memory = torch.arange(4, dtype=torch.float32)
    whole = whole_memory(memory[1:2], torch.float32)
    assert whole.equal(memory)
    assert whole.data_ptr() == memory.data_ptr()
    assert whole_memory(memory[1:2], torch.int16).shape == (8,)


def test_hooks_on_a_view_that_was_written_twice() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.sin_().mul_(w)
        return w * 2

    def slopes(function: Any) -> list[torch.Tensor]:
        leaf = torch.ones(2, 3, requires_grad=True)
        x, w = (leaf * 1).t(), torch.full((3, 2), 2.0, requires_grad=True)
        seen: list[torch.Tensor] = []
        function(x, w)
        # Torch crashes here if the view is outdated.
        x.register_hook(seen.append)
        return [*torch.autograd.grad(x.sum(), (leaf, w)), *seen]

    compiled = torch.compile(program, backend="adjoint", fullgraph=True)
    torch.testing.assert_close(slopes(compiled), slopes(program))
