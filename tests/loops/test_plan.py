from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import sympy
import torch

from adjoint.loops.plan import (
    Argument,
    LibraryCall,
    Plan,
    Slot,
    SlotKind,
    arguments_of,
)


def test_a_plan_is_data() -> None:
    size = sympy.Symbol("s0")
    slots = (
        Slot(0, SlotKind.INPUT, (size,), (1,), torch.float32),
        Slot(1, SlotKind.RESULT, (size,), (1,), torch.float32),
    )
    call = LibraryCall(torch.sin, (Argument(0),), {}, 1)
    plan = Plan(slots, (0,), ((size, 0, 0),), (call,), (Argument(1),))
    assert arguments_of(call) == [0]
    assert [call.aliases, call.is_view, call.writes] == [False] * 3
    with pytest.raises(FrozenInstanceError):
        plan.steps = ()  # type: ignore[misc]


def test_arguments_are_compared_by_their_slot() -> None:
    assert Argument(1) == Argument(1)
    assert Argument(1) != Argument(2)


def test_an_axis_that_is_expanded_takes_no_memory() -> None:
    rows = sympy.Symbol("s0", integer=True, positive=True)
    expanded = Slot(0, SlotKind.INPUT, (rows, 3, 4), (4, 0, 1), torch.float32)
    assert expanded.stored_shape == (rows, 4)
    assert Slot(0, SlotKind.INPUT).stored_shape == ()
