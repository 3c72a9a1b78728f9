"""The calling convention is plain data."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import adjoint
from adjoint.graph.calling import FromCaller, FromGraph, Replay, View, Write


def test_a_program_with_effects_is_described_by_its_convention() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        y = x * 2
        return y[0], y, x

    calling = adjoint.capture(program, torch.zeros(3)).calling
    assert calling.writes == (Write(FromCaller(0), 0, recorded=False),)
    assert calling.versions == ((0, 1),)
    assert calling.metadata_changes == ()
    view, whole, given = (calling.recipes[position] for position in calling.results)
    assert isinstance(view, View)
    assert isinstance(view.steps[0], Replay)
    assert view.steps[0].op is torch.ops.aten.select.int
    assert view.of == whole == FromGraph(1)
    assert given == FromCaller(0)


def test_a_convention_does_not_change() -> None:
    calling = adjoint.capture(torch.sin, torch.zeros(3)).calling
    with pytest.raises(dataclasses.FrozenInstanceError):
        calling.writes = ()  # type: ignore[misc]
