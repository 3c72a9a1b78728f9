"""Effects around a pure graph: applied after it ran, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import adjoint
from adjoint.graph.calling import CallingConvention
from adjoint.runtime.calling import call


def convention(function: Any, *inputs: torch.Tensor) -> CallingConvention:
    return adjoint.capture(function, *inputs).calling


def test_a_graph_that_fails_leaves_inputs_as_they_were() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.requires_grad_()
        return x * y

    def fails(inputs: Sequence[Any]) -> Sequence[Any]:
        assert inputs[1].requires_grad
        raise ZeroDivisionError

    x, y = torch.zeros(3), torch.ones(3)
    with pytest.raises(ZeroDivisionError):
        call(fails, convention(program, x, y), [x, y])
    assert x.equal(torch.zeros(3))
    assert x._version == 0
    assert not y.requires_grad


def test_an_input_that_is_written_is_given_to_the_graph_as_a_copy() -> None:
    seen: list[torch.Tensor] = []

    def graph(inputs: Sequence[Any]) -> Sequence[Any]:
        seen.extend(inputs)
        return [inputs[0] + 1]

    x = torch.zeros(4, 4)[::2]
    call(graph, convention(lambda x: x.add_(1), x), [x])
    assert seen[0].equal(torch.zeros(2, 4))
    assert seen[0].stride() == x.stride()
    assert x.equal(torch.ones(2, 4))


def test_what_a_graph_returns_as_a_view_or_twice_is_made_separate() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 1

    def graph(inputs: Sequence[Any]) -> Sequence[Any]:
        value = inputs[0] + 1
        return [value.view(3), value]

    x = torch.zeros(3)
    one, two = call(graph, convention(program, x), [x])
    assert one._base is None
    assert one.untyped_storage()._cdata != two.untyped_storage()._cdata
    (same,) = call(lambda inputs: [inputs[0]], convention(torch.sin, x), [x])
    assert same is not x


def test_autocast_does_not_reach_the_graph() -> None:
    def graph(inputs: Sequence[Any]) -> Sequence[Any]:
        return [inputs[0] @ inputs[0]]

    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        calling = convention(lambda x: x @ x, x)
        (result,) = call(graph, calling, [x])
    assert result.dtype is torch.float32
