from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adjoint.errors import DifferentiationError
from adjoint.graph.derivative import NodeLayout
from adjoint.runtime import autograd_node
from adjoint.runtime.autograd_node import NodeProgram, ReadyBackward
from adjoint.runtime.executable import Executable, Sizes


class Cube:
    """The backward of x -> (x^3, x^2 saved)."""

    def backward(self, inputs: list[Any], known: Sizes, batched: bool) -> Sequence[Any]:
        square, cotangent = inputs
        return [3 * square * cotangent]


class CubeProgram(NodeProgram):
    def __init__(self) -> None:
        both = frozenset({0, 1})
        super().__init__(NodeLayout(1, (), (1,), (0, 1), both, both), (0,))
        self.asked: list[tuple[Any, ...]] = []
        self.has_backward = True

    def _load(self) -> Executable:
        return lambda inputs: [inputs[0] ** 3, inputs[0] ** 2]

    def backward(
        self, of: tuple[int, ...], wanted: tuple[int, ...], sizes: Sizes
    ) -> tuple[ReadyBackward, Sizes]:
        self.asked.append((of, wanted))
        if not self.has_backward:
            raise DifferentiationError("cube", 1, "the file has no backward")
        return ReadyBackward(Cube(), [0], of, []), sizes


def test_a_node_saves_what_its_backward_takes() -> None:
    program = CubeProgram()
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (result,) = program([x], {})
    assert result.tolist() == [8.0, 27.0]
    (gradient,) = torch.autograd.grad(result, x, torch.tensor([1.0, 2.0]))
    assert gradient.tolist() == [12.0, 54.0]
    assert program.asked == [((0,), (0,))]


def test_a_backward_that_is_not_there_is_its_error() -> None:
    program = CubeProgram()
    program.has_backward = False
    x = torch.tensor([2.0], requires_grad=True)
    (result,) = program([x], {})
    with pytest.raises(DifferentiationError, match="the file has no backward"):
        result.backward()


def test_a_zero_cotangent_is_where_the_output_is() -> None:
    device = torch.device("meta")
    unusual = SimpleNamespace(zeros={0: ((2, 3), torch.float64, device)})
    made = autograd_node._zero(SimpleNamespace(call=(None, {}, unusual)), 0)
    assert (made.shape, made.dtype, made.device) == ((2, 3), torch.float64, device)
