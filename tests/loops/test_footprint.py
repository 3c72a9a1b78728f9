from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor

from adjoint.loops.footprint import footprint, number, profile
from adjoint.loops.plan import LibraryCall, Plan, SlotKind
from tests.lowering import graph_of, lower


def most(spans: Sequence[tuple[int, int, int]]) -> int:
    return max(profile(1 + max(last for _, last, _ in spans), spans), default=0) if spans else 0


def plan_of(function: Any, *inputs: Tensor) -> Plan:
    return lower(graph_of(function, list(inputs)))


def test_profiles() -> None:
    assert profile(4, [(0, 1, 5), (1, 3, 2), (3, 3, -1)]) == [5, 7, 2, 1]
    assert profile(0, []) == []
    # What is there before, and what stays.
    assert profile(2, [(-1, 0, 3), (1, 2, 4)]) == [3, 4]


def test_temporaries_share_memory_and_outputs_stay() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(torch.linalg.qr(x)[0] * 2)
        return x

    x = torch.rand(64, 64)
    made = footprint(plan_of(function, x), {}, most)
    one = x.numel() * 4
    assert made.returned == one
    # One product at a time, though there are three of them.
    assert made.reserved == one
    assert made.steps == len(made.profile(SlotKind.RESULT))
    assert {block.last for block in made.blocks if block.kind is SlotKind.OUTPUT} == {made.steps}
    assert [block.first for block in made.blocks if block.kind is SlotKind.INPUT] == [-1]


def test_one_native_call_allocates_before_and_frees_after() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.sum(0).exp(), torch.cumsum(y, 0).sin().sum(1).cos()]

    plan = plan_of(function, torch.rand(64, 64), torch.rand(32, 32))
    made = footprint(plan, {}, most)
    native = [not isinstance(step, LibraryCall) for step in plan.steps]
    for block in made.blocks:
        if block.kind is SlotKind.INPUT and 0 <= block.last < made.steps - 1:
            assert not (native[block.last] and native[block.last + 1])
        if block.kind is SlotKind.OUTPUT and block.first > 0:
            assert not (native[block.first] and native[block.first - 1])


def test_a_cuda_graph_holds_inputs_and_outputs_but_not_what_is_in_between() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.linalg.qr(torch.linalg.qr(x.sin())[0])[0]
        return x.sin().exp()

    plan = plan_of(function, torch.rand(64, 64))
    called, captured = (footprint(plan, {}, most, captured=each) for each in (False, True))
    inputs, outputs = (
        [block for block in captured.blocks if block.kind is kind]
        for kind in (SlotKind.INPUT, SlotKind.OUTPUT)
    )
    assert [block.last for block in inputs] == [captured.steps - 1]
    assert [block.first for block in outputs] == [0]
    # The results of library calls are freed in a capture as in a call.
    assert captured.profile(SlotKind.RESULT) == called.profile(SlotKind.RESULT)
    assert max(captured.profile(SlotKind.RESULT)) < sum(
        block.bytes for block in captured.blocks if block.kind is SlotKind.RESULT
    )


def test_a_view_keeps_its_tensor() -> None:
    def function(x: Tensor) -> Tensor:
        q = torch.linalg.qr(x)[0]
        y = q.t()
        z = torch.linalg.qr(x * 2)[0]
        return torch.mm(y, z)

    made = footprint(plan_of(function, torch.rand(64, 64)), {}, most)
    results = [block for block in made.blocks if block.kind is SlotKind.RESULT and block.bytes]
    # Each decomposition returns two matrices; the first is alive while the second is computed.
    assert max(made.profile(SlotKind.RESULT)) == sum(block.bytes for block in results)


def test_symbolic_sizes() -> None:
    n = sympy.Symbol("n")
    assert number(3 * n + 1, {n: 5}) == 16
    assert number(7, {}) == 7
